//! The launcher's own signals.

use std::{
    io,
    sync::{
        Arc, LazyLock, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::Sender,
    },
    thread,
};

use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM, SIGTSTP, SIGUSR1, SIGWINCH},
    flag,
    iterator::{Handle, Signals},
};

use super::message::Message;
use crate::interrupt::{self, is_ignored};

/// Forwards signals as messages until dropped. While nothing forwards them they have their default effect, or none in a
/// process that called [`exit_on_signal`](interrupt::exit_on_signal): it is about to end.
pub struct SignalForwarder(Handle);

/// The number of forwarders, and the signals that have been taken over.
static ACTIVE: Mutex<(usize, Vec<i32>)> = Mutex::new((0, Vec::new()));
/// Where launches of this process take messages; some may be over.
static LAUNCHES: Mutex<Vec<Sender<Message>>> = Mutex::new(Vec::new());
/// True while there is no forwarder: the handlers then do what the system would do without them.
static DEFAULT: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

impl SignalForwarder {
    pub fn start(sender: Sender<Message>) -> io::Result<Self> {
        let mut active = ACTIVE.lock().unwrap_or_else(PoisonError::into_inner);
        for signal in [SIGINT, SIGTERM, SIGUSR1, SIGHUP, SIGTSTP, SIGWINCH] {
            // A launcher under nohup, or in the background of a script, was told to ignore some of these.
            if !active.1.contains(&signal) && !is_ignored(signal) {
                flag::register_conditional_default(signal, Arc::clone(&DEFAULT))?;
                active.1.push(signal);
            }
        }
        let mut signals = Signals::new(&active.1)?;
        let handle = signals.handle();
        LAUNCHES.lock().unwrap_or_else(PoisonError::into_inner).push(sender.clone());
        thread::Builder::new().name("signals".into()).spawn(move || {
            for signal in signals.forever() {
                if sender.send(Message::Signal(signal)).is_err() {
                    break;
                }
            }
        })?;
        active.0 += 1;
        DEFAULT.store(false, Ordering::SeqCst);
        interrupt::hand_over_to_launcher();
        Ok(Self(handle))
    }
}

/// Kills the ranks of every [`launch`](crate::launch) of this process at once, on all nodes, as a second Ctrl-C does, also where that signal is ignored. The launches then return.
pub fn stop_launches() {
    let mut launches = LAUNCHES.lock().unwrap_or_else(PoisonError::into_inner);
    launches.retain(|launch| (0..2).all(|_| launch.send(Message::Signal(SIGINT)).is_ok()));
}

impl Drop for SignalForwarder {
    fn drop(&mut self) {
        self.0.close();
        let mut active = ACTIVE.lock().unwrap_or_else(PoisonError::into_inner);
        active.0 -= 1;
        DEFAULT.store(active.0 == 0 && interrupt::have_default_effect(), Ordering::SeqCst);
    }
}
