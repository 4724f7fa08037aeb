//! The output of a job, as its system's program prints it.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::process::command;
use super::{Console, Notice};
use crate::systems::Commands;

/// From the start of one reading of the output to the next, where there is none yet, or it ended since the job starts again.
const READ_EVERY: Duration = Duration::from_secs(10);

/// For the last lines, after the job's end.
const LAST_LINES: Duration = Duration::from_secs(3);

const POLL: Duration = Duration::from_millis(50);

/// The program that prints the output; it ends with this value.
#[derive(Default)]
pub(super) struct Logs {
    child: Option<Child>,
    began: Option<Instant>,
    /// Shows what it prints, where lines have times.
    showing: Option<JoinHandle<()>>,
    /// What it said last about itself.
    said: Arc<Mutex<Option<String>>>,
    /// The time of the last line that was shown, where lines have times.
    shown: Arc<Mutex<String>>,
    notice: Notice,
}

impl Logs {
    /// Starts it, unless it runs or was just started.
    pub fn keep(&mut self, commands: &Commands, folder: &Path) {
        let ended = self.child.as_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None)));
        if ended && self.began.is_none_or(|began| began.elapsed() > READ_EVERY) {
            self.began = Some(Instant::now());
            let mut command = command(&self.words(commands), folder);
            if commands.logs_have_times {
                command.stdout(Stdio::piped());
            }
            self.child = command.stderr(Stdio::piped()).spawn().ok();
            let Some(child) = &mut self.child else { return };
            if let Some(stderr) = child.stderr.take() {
                keep_last_line(stderr, self.said.clone());
            }
            if let Some(stdout) = child.stdout.take() {
                let shown = self.shown.clone();
                let show = move || show_new(BufReader::new(stdout), &mut std::io::stdout(), &shown);
                self.showing = Some(thread::spawn(show));
            }
        }
    }

    /// Its command, which begins after what was shown.
    fn words(&self, commands: &Commands) -> Vec<String> {
        let mut words = commands.logs.clone();
        if commands.logs_have_times {
            words.push("--timestamps".into());
            let shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
            words.extend((!shown.is_empty()).then(|| format!("--since-time={shown}")));
        }
        words
    }

    /// Shows what the program said last, if it is something else than before: while nothing runs yet, it only says so.
    pub fn show_notice(&mut self, console: &mut Console<'_>) {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(line) = said {
            self.notice.show(format!("its output: {line}"), console);
        }
    }

    /// Reads once more what was printed since, where that shows nothing twice: the job may have ended between two readings.
    pub fn read_last(&mut self, commands: &Commands, folder: &Path) {
        let runs = self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)));
        if commands.logs_have_times && !runs {
            // What was read before is shown first.
            self.finish();
            self.began = None;
            self.keep(commands, folder);
        }
    }

    /// Waits for the last lines.
    pub fn finish(&mut self) {
        let begin = Instant::now();
        let prints = |logs: &mut Self| {
            logs.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
                || logs.showing.as_ref().is_some_and(|showing| !showing.is_finished())
        };
        while begin.elapsed() < LAST_LINES && prints(self) {
            thread::sleep(POLL);
        }
    }
}

impl Drop for Logs {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Reads a stream to its end, and remembers the last line.
fn keep_last_line(stream: impl Read + Send + 'static, last: Arc<Mutex<Option<String>>>) {
    thread::spawn(move || {
        // Nobody looks for more of a stream that cannot be read.
        for line in BufReader::new(stream).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).trim().to_owned();
            if !line.is_empty() {
                *last.lock().unwrap_or_else(PoisonError::into_inner) = Some(line);
            }
        }
    });
}

/// Shows the lines of a stream without the times before them, as far as they are later than `shown`, the time of the last one: the program begins at the whole
/// second, and shows lines of it again.
fn show_new(stream: impl BufRead, to: &mut impl Write, shown: &Mutex<String>) {
    let last = || shown.lock().unwrap_or_else(PoisonError::into_inner);
    let before = last().clone();
    for line in stream.split(b'\n').map_while(Result::ok) {
        let blank = line.iter().position(|byte| *byte == b' ').unwrap_or(line.len());
        let time = std::str::from_utf8(&line[..blank]).ok().filter(|word| is_time(word));
        let text = match time {
            Some(time) => {
                if *time <= *before {
                    continue;
                }
                time.clone_into(&mut last());
                line.get(blank + 1..).unwrap_or_default()
            }
            None => &line[..],
        };
        // Where nobody reads it, the job goes on as well.
        let _ = to.write_all(&[text, b"\n"].concat()).and_then(|()| to.flush());
    }
}

/// Whether a word is a time, as in `2025-01-31T12:00:00.123456789Z`: such words have the order of the times.
fn is_time(word: &str) -> bool {
    let starts_as_date = word
        .split('-')
        .next()
        .is_some_and(|year| year.len() == 4 && year.bytes().all(|byte| byte.is_ascii_digit()));
    starts_as_date && word.len() >= 20 && word.as_bytes()[10] == b'T'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_was_cut_off_continues_after_what_was_shown() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let commands = Commands {
            check: None,
            submit: Vec::new(),
            logs: words("kubectl logs --tail=-1"),
            logs_have_times: true,
            state: Vec::new(),
            waiting: None,
            cancel: Vec::new(),
        };
        let logs = Logs::default();
        assert_eq!(logs.words(&commands).join(" "), "kubectl logs --tail=-1 --timestamps");
        let mut output = Vec::new();
        let first = "2025-01-31T12:00:00.100000000Z a b\n2025-01-31T12:00:00.200000000Z \n2025-01-31T12:00:01.100000000Z c\n";
        show_new(first.as_bytes(), &mut output, &logs.shown);
        let since = "kubectl logs --tail=-1 --timestamps --since-time=2025-01-31T12:00:01.100000000Z";
        assert_eq!(logs.words(&commands).join(" "), since);
        let second = "2025-01-31T12:00:01.100000000Z c\n2025-01-31T12:00:01.200000000Z d\nwithout a time\n";
        show_new(second.as_bytes(), &mut output, &logs.shown);
        assert_eq!(String::from_utf8(output).unwrap(), "a b\n\nc\nd\nwithout a time\n");
        let plain = Commands { logs_have_times: false, ..commands };
        assert_eq!(logs.words(&plain), plain.logs);
    }
}
