//! What a run says about itself, while it runs and later.

mod logs;
mod report;
mod scaling;
mod status;
mod timeline;
mod watch;
