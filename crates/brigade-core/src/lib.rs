//! brigade-core
