//! brigade-data
