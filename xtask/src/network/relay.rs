//! A switch that hands every frame on after a delay: what `tc netem` does, for kernels without it.
//!
//! It reads and writes the bridge's ends of the cables through packet sockets. Frames keep the header that says what the kernel has
//! not done to them yet (segments to cut, checksums to fill in), so one frame has up to 64 KiB, and a gigabit a second costs little.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt};

/// Of the kernel's `struct virtio_net_hdr`, with which each frame begins here.
const OFFLOADS: usize = 10;
/// No frame is larger.
const FRAME: usize = OFFLOADS + (1 << 17);
/// What a socket holds while its thread waits for a core. `tbf` drops what is too much for the network, not the relay.
const BUFFER: usize = 32 << 20;
/// For how long nothing but errors may come from an interface, which may not be up yet, and between two looks at one.
const PATIENCE: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_millis(1);

type Address = [u8; 6];
/// A frame, and when it is due.
type Delayed = (Instant, Arc<[u8]>);

/// Hands frames on between these interfaces for as long as the process lives, each after `delay`.
pub fn start(ports: &[String], delay: Duration) -> Result<()> {
    let sockets =
        ports.iter().map(|port| Ok(Arc::new(open(port).with_context(|| format!("cannot read {port}"))?)));
    let sockets = sockets.collect::<Result<Vec<_>>>()?;
    let (queues, waiting): (Vec<_>, Vec<_>) = ports.iter().map(|_| channel::<Delayed>()).unzip();
    for (socket, waiting) in sockets.iter().zip(waiting) {
        let socket = Arc::clone(socket);
        std::thread::spawn(move || write(&socket, &waiting));
    }
    let places = Arc::new(Mutex::new(HashMap::new()));
    for (port, (socket, name)) in sockets.into_iter().zip(ports.to_vec()).enumerate() {
        let (queues, places) = (queues.clone(), Arc::clone(&places));
        std::thread::spawn(move || {
            let error = read(&socket, port, (delay, PATIENCE), &queues, &places);
            eprintln!("nothing more can be read from {name}: {error}");
        });
    }
    Ok(())
}

/// Puts what comes in at a port into the queues of the others, after `delay`; gives the last error once there was nothing else for `patience`.
fn read(
    socket: &OwnedFd,
    port: usize,
    (delay, patience): (Duration, Duration),
    queues: &[Sender<Delayed>],
    places: &Mutex<HashMap<Address, usize>>,
) -> Errno {
    let mut frame = vec![0; FRAME];
    let mut failing: Option<Instant> = None;
    loop {
        let length = match recv(socket, &mut frame[..], RecvFlags::empty()) {
            Ok((length, _)) => length,
            Err(error) if failing.is_some_and(|since| since.elapsed() >= patience) => return error,
            // The interface is not up yet, or something was lost.
            Err(_) => {
                failing.get_or_insert_with(Instant::now);
                std::thread::sleep(RETRY);
                continue;
            }
        };
        failing = None;
        let Some((to, from)) = addresses(&frame[..length]) else { continue };
        let known = {
            let mut places = places.lock().unwrap_or_else(PoisonError::into_inner);
            places.insert(from, port);
            places.get(&to).copied()
        };
        let (due, frame) = (Instant::now() + delay, Arc::<[u8]>::from(&frame[..length]));
        for (other, queue) in queues.iter().enumerate() {
            if other != port && known.is_none_or(|known| known == other) {
                // The writers live as long as the readers.
                let _ = queue.send((due, Arc::clone(&frame)));
            }
        }
    }
}

/// Writes what is due.
fn write(socket: &OwnedFd, waiting: &Receiver<Delayed>) {
    for (due, frame) in waiting {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        // What finds no place in the queue of `tbf` is lost, as in any switch.
        while send(socket, &frame, SendFlags::empty()) == Err(Errno::INTR) {}
    }
}

/// Where a frame goes, and where it comes from.
fn addresses(frame: &[u8]) -> Option<(Address, Address)> {
    let (to, rest) = frame.get(OFFLOADS..)?.split_first_chunk()?;
    Some((*to, *rest.first_chunk()?))
}

/// A socket that sees what comes in at an interface, and writes to it.
fn open(port: &str) -> io::Result<OwnedFd> {
    let index = rustix::net::netdevice::name_to_index(
        rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)?,
        port,
    )?;
    let checked =
        |returned: libc::c_int| if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(returned) };
    // SAFETY: No pointer is involved.
    let descriptor =
        checked(unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: It is open, and nobody else's.
    let socket = unsafe { OwnedFd::from_raw_fd(descriptor) };
    let on: libc::c_int = 1;
    for option in [libc::PACKET_VNET_HDR, libc::PACKET_IGNORE_OUTGOING] {
        // SAFETY: The value is an integer of the length that is given.
        checked(unsafe {
            libc::setsockopt(
                descriptor,
                libc::SOL_PACKET,
                option,
                (&raw const on).cast(),
                size_of_val(&on) as u32,
            )
        })?;
    }
    // Above the system's limit where this user may.
    sockopt::set_socket_recv_buffer_size_force(&socket, BUFFER)
        .or_else(|_| sockopt::set_socket_recv_buffer_size(&socket, BUFFER))?;
    sockopt::set_socket_send_buffer_size_force(&socket, BUFFER)
        .or_else(|_| sockopt::set_socket_send_buffer_size(&socket, BUFFER))?;
    // SAFETY: All fields are integers, of which zero is a value.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = index as libc::c_int;
    // SAFETY: The address is one of the length that is given.
    checked(unsafe {
        libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size_of_val(&address) as u32)
    })?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_that_gives_nothing_but_errors_is_given_up() {
        let patience = Duration::from_millis(50);
        let (no_socket, began) = (OwnedFd::from(tempfile::tempfile().unwrap()), Instant::now());
        let error = read(&no_socket, 0, (Duration::ZERO, patience), &[], &Mutex::default());
        assert_eq!((error, began.elapsed() >= patience), (Errno::NOTSOCK, true));
    }

    #[test]
    fn a_frame_says_where_it_goes() {
        let mut frame = vec![0; OFFLOADS];
        frame.extend([1, 2, 3, 4, 5, 6, 11, 12, 13, 14, 15]);
        assert_eq!(addresses(&frame), None);
        frame.push(16);
        assert_eq!(addresses(&frame), Some(([1, 2, 3, 4, 5, 6], [11, 12, 13, 14, 15, 16])));
    }
}
