//! brigade-report
