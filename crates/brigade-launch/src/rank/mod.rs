//! What a process that is a rank uses: its heartbeats, the rendezvous socket, and how often the ranks were restarted.

pub mod heartbeat;
mod inherited_fd;
pub mod listener;
pub mod restart;
