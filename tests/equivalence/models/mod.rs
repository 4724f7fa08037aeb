//! Models of every shape, and what is made with them.

pub(crate) mod classifiers;
pub(crate) mod decoders;
pub(crate) mod encoders;
pub(crate) mod load;
pub(crate) mod model_shapes;
pub(crate) mod predict;
#[cfg(feature = "text")]
pub(crate) mod rows;
