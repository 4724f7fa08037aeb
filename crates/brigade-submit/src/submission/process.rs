//! The systems' programs.

use std::io::{ErrorKind, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::systems::line;

/// No program here takes longer to answer.
const DEADLINE: Duration = Duration::from_secs(120);

/// How long what a program started may keep its output open after it.
const LAST_OUTPUT: Duration = Duration::from_secs(2);

const POLL: Duration = Duration::from_millis(20);

/// That a program is not on this machine, if it is not.
pub fn missing_program(program: &str) -> Option<Error> {
    let is_program = |path: &Path| {
        path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    let paths = std::env::var_os("PATH").unwrap_or_default();
    if std::env::split_paths(&paths).any(|folder| is_program(&folder.join(program))) {
        return None;
    }
    let instead = match program {
        "gcloud" => "install the Google Cloud CLI, and log in with gcloud auth login",
        "kubectl" => "install kubectl, and give it the cluster's configuration",
        "sbatch" => "submit from a host of the cluster, where Slurm's commands are installed",
        _ => "install it",
    };
    let instead = format!("{instead}; --render DIR writes the files to submit elsewhere");
    Some(Error::NoProgram { program: program.into(), instead })
}

/// A command of a program that Ctrl-C does not reach.
pub(super) fn command(words: &[String], folder: &Path) -> Command {
    let mut command = Command::new(words.first().map_or("", String::as_str));
    command.args(words.iter().skip(1)).current_dir(folder).process_group(0).stdin(Stdio::null());
    command
}

/// What a program prints.
///
/// # Errors
/// If it fails, or does not end in time.
pub(super) fn output(words: &[String], folder: &Path) -> Result<String> {
    output_without(words, folder, &|_| false)
}

/// The same of a program that does not get the variables whose names are `hidden`.
///
/// # Errors
/// As [`output`].
pub(super) fn output_without(
    words: &[String],
    folder: &Path,
    hidden: &dyn Fn(&str) -> bool,
) -> Result<String> {
    let mut command = command(words, folder);
    for (name, _) in std::env::vars_os().filter(|(name, _)| hidden(&name.to_string_lossy())) {
        command.env_remove(name);
    }
    let printed = answer_of(command, words, DEADLINE, &AtomicBool::new(false))?;
    // Nobody interrupts it.
    Ok(printed.unwrap_or_default())
}

/// What a program prints within `deadline`; nothing if `interrupted` is set before it ends. A program that has not ended is killed.
///
/// # Errors
/// If it fails, or does not end in time.
pub(super) fn answer(
    words: &[String],
    folder: &Path,
    deadline: Duration,
    interrupted: &AtomicBool,
) -> Result<Option<String>> {
    answer_of(command(words, folder), words, deadline, interrupted)
}

fn answer_of(
    mut command: Command,
    words: &[String],
    deadline: Duration,
    interrupted: &AtomicBool,
) -> Result<Option<String>> {
    let failed = |source| Error::Command { command: line(words), source };
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(failed)?;
    let (stdout, stderr) = (reader(child.stdout.take()), reader(child.stderr.take()));
    let Some(status) = wait(&mut child, deadline, interrupted).map_err(failed)? else { return Ok(None) };
    let (stdout, stderr) = (stdout.text(), stderr.text());
    if status.success() {
        return Ok(Some(stdout));
    }
    Err(Error::Failed { command: line(words), status, stderr })
}

/// What a thread has read of a stream.
struct Reader {
    bytes: Arc<Mutex<Vec<u8>>>,
    ended: Receiver<()>,
}

impl Reader {
    /// What was read up to the end, or until nobody waits any more.
    fn text(self) -> String {
        // Without an answer, something holds the stream open.
        let _ = self.ended.recv_timeout(LAST_OUTPUT);
        let bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Reads all of a stream.
fn reader(stream: Option<impl Read + Send + 'static>) -> Reader {
    let (sender, ended) = channel();
    let bytes = Arc::new(Mutex::new(Vec::new()));
    let shared = bytes.clone();
    thread::spawn(move || {
        let mut part = [0; 4096];
        let mut stream = stream;
        // What was read before an error counts.
        while let Some(count @ 1..) = stream.as_mut().and_then(|stream| stream.read(&mut part).ok()) {
            shared.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&part[..count]);
        }
        // Nobody may wait any more.
        let _ = sender.send(());
    });
    Reader { bytes, ended }
}

/// Waits for a program, and kills it after the deadline, or when it is interrupted: then it has no status.
fn wait(
    child: &mut Child,
    deadline: Duration,
    interrupted: &AtomicBool,
) -> std::io::Result<Option<ExitStatus>> {
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        let is_interrupted = interrupted.load(Ordering::SeqCst);
        if is_interrupted || begin.elapsed() > deadline {
            child.kill()?;
            child.wait()?;
            let late =
                || std::io::Error::new(ErrorKind::TimedOut, format!("no answer in {} s", deadline.as_secs()));
            return if is_interrupted { Ok(None) } else { Err(late()) };
        }
        thread::sleep(POLL);
    }
}
