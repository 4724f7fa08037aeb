//! A job on its way, as its system shows it.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use super::logs::Logs;
use super::process::output;
use super::{Answer, Console, Ending, Notice};
use crate::error::{Error, Result};
use crate::systems::{Commands, JobState, System};

/// From one question about the job's state to the next.
const ASK_EVERY: Duration = Duration::from_secs(5);

/// Questions without an answer, one after the other, after which following ends.
const PATIENCE: u32 = 24;

/// How long a job that its system ended may take to start again, before it counts as failed.
const RESTART: Duration = Duration::from_secs(120);

const POLL: Duration = Duration::from_millis(50);

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
        if asked.is_none_or(|asked| asked.elapsed() > ASK_EVERY) {
            asked = Some(Instant::now());
            logs.show_notice(console);
            let state = match output(&commands.state, folder) {
                Ok(text) => {
                    unanswered = 0;
                    let state = system.state_of(&text);
                    if state == JobState::Active {
                        // What it says beside the state is not needed.
                        let more = commands.waiting.as_ref().and_then(|words| output(words, folder).ok());
                        if let Some(why) = system.waits_for(&text, &more.unwrap_or_default()) {
                            waiting.show(format!("it waits: {why}"), console);
                        }
                    }
                    state
                }
                Err(error @ Error::Failed { .. }) if unanswered >= PATIENCE => return Err(error),
                Err(Error::Failed { .. }) => {
                    unanswered += 1;
                    JobState::Active
                }
                Err(error) => return Err(error),
            };
            if let Some(ending) = states.ending(state, Instant::now()) {
                logs.finish();
                return Ok(ending);
            }
        }
        thread::sleep(POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
