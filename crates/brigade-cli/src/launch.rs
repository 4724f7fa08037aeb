//! `brigade launch`
fn _x() {}
