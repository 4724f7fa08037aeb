//! brigade-launch
