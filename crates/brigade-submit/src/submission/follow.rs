//! A job on its way, as its system shows it.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use super::logs::Logs;
use super::process::{answer, output};
use super::{Answer, Console, Ending, Notice};
use crate::error::Result;
use crate::systems::{Commands, JobState, System};

/// How a job is asked for.
const PACE: Pace = Pace { every: Duration::from_secs(5), answer: Duration::from_secs(30) };

/// Questions without an answer, one after the other, after which following ends.
const PATIENCE: u32 = 24;

/// How long a job that its system ended may take to start again, before it counts as failed.
const RESTART: Duration = Duration::from_secs(120);

const POLL: Duration = Duration::from_millis(50);

/// The times of questions about a job's state.
#[derive(Clone, Copy)]
struct Pace {
    /// From one question to the next.
    every: Duration,
    /// How long an answer may take.
    answer: Duration,
}

/// The states of a job, one after the other, and what they mean for whoever follows it.
#[derive(Default)]
struct JobStates {
    /// Since when its system has ended it.
    ended: Option<Instant>,
}

impl JobStates {
    /// How it ended, if it has, by its state now.
    fn ending(&mut self, state: JobState, now: Instant) -> Option<Ending> {
        self.ended = (state == JobState::Ended).then(|| self.ended.unwrap_or(now));
        match state {
            JobState::Active => None,
            JobState::Ended => {
                self.ended.filter(|since| now.duration_since(*since) >= RESTART).map(|_| Ending::Failed)
            }
            JobState::Done => Some(Ending::Done),
            JobState::Failed => Some(Ending::Failed),
            JobState::Cancelled => Some(Ending::Cancelled),
        }
    }
}

/// Shows the output of a job until its end.
pub(super) fn follow(
    system: &dyn System,
    commands: &Commands,
    folder: &Path,
    console: &mut Console<'_>,
) -> Result<Ending> {
    follow_at(PACE, system, commands, folder, console)
}

fn follow_at(
    pace: Pace,
    system: &dyn System,
    commands: &Commands,
    folder: &Path,
    console: &mut Console<'_>,
) -> Result<Ending> {
    let mut logs = Logs::default();
    let mut waiting = Notice::default();
    let (mut asked, mut unanswered): (Option<Instant>, u32) = (None, 0);
    let mut states = JobStates::default();
    loop {
        if console.interrupted.swap(false, Ordering::SeqCst) {
            match (console.ask)() {
                Answer::Follow => {}
                Answer::Leave => return Ok(Ending::Left),
                Answer::Cancel => {
                    output(&commands.cancel, folder)?;
                    logs.finish();
                    return Ok(Ending::Cancelled);
                }
            }
        }
        logs.keep(commands, folder);
        if asked.is_none_or(|asked| asked.elapsed() > pace.every) {
            asked = Some(Instant::now());
            logs.show_notice(console);
            let interrupted = console.interrupted;
            let ask = |words: &Vec<String>| answer(words, folder, pace.answer, interrupted);
            let state = match ask(&commands.state) {
                Ok(Some(text)) => {
                    unanswered = 0;
                    let state = system.state_of(&text);
                    if state == JobState::Active {
                        // What it says beside the state is not needed.
                        let more = commands.waiting.as_ref().and_then(|words| ask(words).ok().flatten());
                        if let Some(why) = system.waits_for(&text, &more.unwrap_or_default()) {
                            waiting.show(format!("it waits: {why}"), console);
                        }
                    }
                    state
                }
                // Ctrl-C comes first.
                Ok(None) => continue,
                Err(error) if error.is_without_answer() && unanswered < PATIENCE => {
                    unanswered += 1;
                    JobState::Active
                }
                Err(error) => return Err(error),
            };
            if let Some(ending) = states.ending(state, Instant::now()) {
                logs.read_last(commands, folder);
                logs.finish();
                return Ok(ending);
            }
        }
        thread::sleep(POLL);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::job::Job;
    use crate::systems::Manifest;

    /// A system whose jobs are done.
    struct Done;

    impl System for Done {
        fn name(&self) -> &'static str {
            "done"
        }

        fn check(&self, _: &Job) -> Result<()> {
            Ok(())
        }

        fn manifests(&self, _: &Job) -> Vec<Manifest> {
            Vec::new()
        }

        fn commands(&self, _: &Job) -> Commands {
            commands("true")
        }

        fn state_of(&self, _: &str) -> JobState {
            JobState::Done
        }
    }

    /// The commands of a job whose state a script says.
    fn commands(state: &str) -> Commands {
        let script = |text: &str| ["sh", "-c", text].map(str::to_owned).to_vec();
        Commands {
            check: None,
            submit: script("true"),
            logs: script("true"),
            logs_have_times: false,
            state: script(state),
            waiting: None,
            cancel: script("true"),
        }
    }

    #[test]
    fn a_question_that_is_not_answered_in_time_is_asked_again() {
        let pace = Pace { every: Duration::ZERO, answer: Duration::from_secs(2) };
        let folder = tempfile::tempdir().unwrap();
        let interrupted = AtomicBool::new(false);
        let ending = |state: &str| {
            let mut console =
                Console { say: &mut |_| {}, interrupted: &interrupted, ask: &mut || Answer::Leave };
            follow_at(pace, &Done, &commands(state), folder.path(), &mut console)
        };
        let once = "[ -e asked ] && exit 0; touch asked; exec sleep 600";
        assert_eq!(ending(once).unwrap(), Ending::Done);
        assert!(folder.path().join("asked").exists());
        let mut none = commands("true");
        none.state = vec!["/nowhere/program".into()];
        let mut console = Console { say: &mut |_| {}, interrupted: &interrupted, ask: &mut || Answer::Leave };
        let error = follow_at(pace, &Done, &none, folder.path(), &mut console).unwrap_err();
        assert!(error.to_string().starts_with("/nowhere/program: "), "{error}");
    }

    #[test]
    fn a_job_that_nobody_starts_again_has_failed() {
        let (mut states, begin) = (JobStates::default(), Instant::now());
        let mut at = |state, seconds| states.ending(state, begin + Duration::from_secs(seconds));
        assert_eq!(at(JobState::Ended, 0), None);
        assert_eq!(at(JobState::Ended, 119), None);
        assert_eq!(at(JobState::Active, 120), None, "it was started again");
        assert_eq!(at(JobState::Ended, 200), None);
        assert_eq!(at(JobState::Ended, 320), Some(Ending::Failed));
        assert_eq!(at(JobState::Failed, 321), Some(Ending::Failed));
        assert_eq!(at(JobState::Done, 321), Some(Ending::Done));
        assert_eq!(at(JobState::Cancelled, 321), Some(Ending::Cancelled));
    }
}
