//! Parameters that are not trained, or kept in another number type.

pub(crate) mod frozen;
pub(crate) mod given;
pub(crate) mod keep_in_f32;
