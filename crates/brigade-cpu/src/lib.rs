//! brigade-cpu
