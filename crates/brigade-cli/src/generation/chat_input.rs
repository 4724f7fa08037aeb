//! Where the lines of a chat come from, and where its answers go.

use std::fmt::Arguments;
use std::io::{self, BufRead, IsTerminal, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use brigade::Session;
use brigade::launcher::TERMINAL_INPUT_VARIABLE;

use crate::output::{BackgroundOutput, show};

/// The person that chats, or a program in its place.
pub trait ChatInput {
    /// The next line; none if there will be no more.
    fn next_line(&mut self) -> anyhow::Result<Option<String>>;

    /// Shows a part of an answer; `false` if nobody reads any more.
    fn show(&mut self, part: &str) -> anyhow::Result<bool>;

    /// Says something that is not part of the chat.
    fn note(&mut self, note: Arguments<'_>);
}

/// The standard input and output of a process that has the whole model.
pub struct StandardInput {
    lines: io::Lines<io::StdinLock<'static>>,
    is_terminal: bool,
}

impl StandardInput {
    pub fn open() -> Self {
        let stdin = io::stdin();
        Self { is_terminal: stdin.is_terminal(), lines: stdin.lock().lines() }
    }
}

impl ChatInput for StandardInput {
    fn next_line(&mut self) -> anyhow::Result<Option<String>> {
        if self.is_terminal {
            prompt("> ");
        }
        let line = self.lines.next().transpose().context(CANNOT_READ)?;
        if line.is_none() && self.is_terminal {
            prompt("\n");
        }
        Ok(line)
    }

    fn show(&mut self, part: &str) -> anyhow::Result<bool> {
        show(part)
    }

    fn note(&mut self, note: Arguments<'_>) {
        brigade::print_stderr(note);
    }
}

/// Those of rank 0, whose lines all ranks of a pipeline answer together.
pub struct RankInput<'a> {
    session: &'a Session,
    /// On rank 0.
    own: Option<OwnInput>,
}

/// What rank 0 reads and writes.
struct OwnInput {
    lines: Receiver<io::Result<String>>,
    /// Whether somebody types the lines.
    is_terminal: bool,
    output: BackgroundOutput,
}

/// How long rank 0 waits for a line before it tells the others, who wait for it, that there is none yet.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// What rank 0 tells the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InputEvent {
    NoLineYet,
    Line,
    End,
}

impl<'a> RankInput<'a> {
    /// On every rank of a session with one pipeline.
    pub fn open(session: &'a Session) -> anyhow::Result<Self> {
        let own = (session.rank() == 0).then(OwnInput::open).transpose()?;
        Ok(Self { session, own })
    }

    /// Waits until all answers are written.
    ///
    /// # Errors
    /// If they cannot be.
    pub fn finish(self) -> anyhow::Result<()> {
        self.own.map_or(Ok(()), |own| own.output.finish())
    }

    /// Rank 0's event and line, on all ranks.
    fn share(&self, event: InputEvent, line: &str) -> anyhow::Result<(InputEvent, String)> {
        let group = self.session.group();
        let mut head = [event as i64, line.len() as i64];
        group.broadcast_in_place(&mut head, 0)?;
        let all = [InputEvent::NoLineYet, InputEvent::Line, InputEvent::End];
        let Some(event) = all.into_iter().find(|event| *event as i64 == head[0]) else {
            bail!("rank 0 has sent {} instead of a line of the chat", head[0]);
        };
        let mut bytes = line.as_bytes().to_vec();
        bytes.resize(usize::try_from(head[1])?, 0);
        group.broadcast_in_place(&mut bytes, 0)?;
        Ok((event, String::from_utf8(bytes).context("rank 0 has sent a line that is not UTF-8")?))
    }
}

impl ChatInput for RankInput<'_> {
    fn next_line(&mut self) -> anyhow::Result<Option<String>> {
        if let Some(own) = &self.own {
            own.prompt("> ");
        }
        loop {
            let (event, line) = match &self.own {
                Some(own) => own.wait()?,
                None => (InputEvent::NoLineYet, String::new()),
            };
            self.session.send_heartbeat("waiting for a line of the chat");
            match self.share(event, &line)? {
                (InputEvent::NoLineYet, _) => {}
                (InputEvent::Line, line) => return Ok(Some(line)),
                (InputEvent::End, _) => {
                    if let Some(own) = &self.own {
                        own.prompt("\n");
                    }
                    return Ok(None);
                }
            }
        }
    }

    fn show(&mut self, part: &str) -> anyhow::Result<bool> {
        if let Some(own) = &self.own {
            own.output.show(part);
        }
        // The ranks continue together, and learn with the next line that nobody reads any more.
        Ok(true)
    }

    fn note(&mut self, note: Arguments<'_>) {
        if self.own.is_some() {
            brigade::print_stderr(note);
        }
    }
}

impl OwnInput {
    /// Begins to read.
    fn open() -> anyhow::Result<Self> {
        let (sender, lines) = sync_channel(1);
        let read = move || {
            for line in io::stdin().lock().lines() {
                let is_last = line.is_err();
                if sender.send(line).is_err() || is_last {
                    return;
                }
            }
        };
        thread::Builder::new().name("input".into()).spawn(read).context("cannot start a thread")?;
        let is_terminal = std::env::var_os(TERMINAL_INPUT_VARIABLE).is_some() || io::stdin().is_terminal();
        Ok(Self { lines, is_terminal, output: BackgroundOutput::open()? })
    }

    fn wait(&self) -> anyhow::Result<(InputEvent, String)> {
        if !self.output.is_read() {
            return Ok((InputEvent::End, String::new()));
        }
        match self.lines.recv_timeout(POLL_INTERVAL) {
            Ok(line) => Ok((InputEvent::Line, line.context(CANNOT_READ)?)),
            Err(RecvTimeoutError::Timeout) => Ok((InputEvent::NoLineYet, String::new())),
            Err(RecvTimeoutError::Disconnected) => Ok((InputEvent::End, String::new())),
        }
    }

    fn prompt(&self, text: &str) {
        if self.is_terminal {
            prompt(text);
        }
    }
}

const CANNOT_READ: &str = "cannot read standard input";

/// Text that is not part of the chat. It is only useful if somebody sees it.
fn prompt(text: &str) {
    drop(write!(io::stderr().lock(), "{text}"));
}
