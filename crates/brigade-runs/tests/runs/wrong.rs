//! Folders that are no run's, or whose files are damaged.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use brigade_report::StepRecord;
use brigade_runs::{Error, Follower, Run, RunState, overviews, page};

use crate::made;

fn message(dir: &Path) -> String {
    Run::read(dir).unwrap_err().to_string()
}

#[test]
fn what_is_no_run_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("a");
    assert!(message(&dir).contains("a is not a folder"), "{}", message(&dir));
    fs::create_dir(&dir).unwrap();
    assert!(message(&dir).contains("a has no metrics.jsonl"), "{}", message(&dir));
    fs::write(dir.join("metrics.jsonl"), "").unwrap();
    assert!(message(&dir).contains("its run has not finished a step"), "{}", message(&dir));
    fs::write(dir.join("metrics.jsonl"), "{\"step\":1}\nx\n").unwrap();
    assert!(message(&dir).ends_with("metrics.jsonl has no line that can be read"), "{}", message(&dir));
}

#[test]
fn a_line_that_was_cut_short_or_is_damaged_is_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("metrics.jsonl");
    made::run(folder.path(), 5);
    let whole = fs::read_to_string(&path).unwrap();
    for cut in 1..40 {
        fs::write(&path, &whole[..whole.len() - cut]).unwrap();
        let run = Run::read(folder.path()).unwrap();
        // A line that lacks its end alone is whole.
        assert_eq!((run.records.len(), run.unreadable), (if cut == 1 { 5 } else { 4 }, 0), "{cut} bytes");
    }
    fs::write(&path, whole.replacen("\"loss\":", "\"loss\"", 1)).unwrap();
    let run = Run::read(folder.path()).unwrap();
    assert_eq!((run.records.len(), run.unreadable), (4, 1));
    assert!(page(&run, None).unwrap().contains("1 line of metrics.jsonl cannot be read and is left out."));
    // A list of runs counts them, too, but not a line that is still being written.
    let damaged = whole.replacen("\"loss\":", "\"loss\"", 2);
    fs::write(&path, damaged + "{\"step\":").unwrap();
    let found = overviews(folder.path()).unwrap().remove(0).unwrap();
    let note = found.run.unreadable_note();
    assert_eq!(note.as_deref(), Some("2 lines of metrics.jsonl cannot be read and are left out"));
    assert_eq!(Run::read(folder.path()).unwrap().unreadable_note(), note);
    assert_eq!(found.run.records.len(), 3);
}

#[cfg(target_os = "linux")]
#[test]
fn a_run_that_cannot_be_read_hides_no_other() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a", "b", "c"] {
        made::run(&folder.path().join(name), 5);
    }
    let path = folder.path().join("b/metrics.jsonl");
    fs::remove_file(&path).unwrap();
    // A file that can be opened, and not read.
    std::os::unix::fs::symlink("/proc/self/mem", &path).unwrap();
    let found = overviews(folder.path()).unwrap();
    let names: Vec<_> = found.iter().flatten().map(|overview| overview.run.name.as_str()).collect();
    assert_eq!((found.len(), names), (3, vec!["a", "c"]));
    let message = found[1].as_ref().err().map(ToString::to_string).unwrap();
    assert!(message.contains("b/metrics.jsonl"), "{message}");
}

#[test]
fn reading_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    made::run(folder.path(), 5);
    fs::write(folder.path().join(".brigade.lock"), "").unwrap();
    let files = || -> BTreeMap<_, _> {
        let entries = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
        entries
            .map(|path| {
                (path.clone(), (fs::read(&path).unwrap(), path.metadata().unwrap().modified().unwrap()))
            })
            .collect()
    };
    let before = files();
    page(&Run::read(folder.path()).unwrap(), None).unwrap();
    assert!(files() == before);
}

#[test]
fn runs_of_other_models_are_not_compared() {
    let folder = tempfile::tempdir().unwrap();
    let [a, b] = ["a", "b"].map(|name| folder.path().join(name));
    made::run(&a, 2);
    made::run(&b, 2);
    fs::write(b.join("config.toml"), made::CONFIG.replace("width = 8", "width = 16")).unwrap();
    let [a, b] = [a, b].map(|dir| Run::read(&dir).unwrap());
    let refused = page(&a, Some(&b));
    assert!(matches!(refused, Err(Error::NotComparable { .. })), "{refused:?}");
}

#[test]
fn a_run_that_goes_on_is_followed() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let path = dir.join("metrics.jsonl");
    made::run(dir, 3);
    let line = |step: u64| serde_json::to_string(&made::record(step)).unwrap() + "\n";
    let mut follower = Follower::new(dir);
    let steps = |follower: &Follower| follower.records().map(|record| record.step).collect::<Vec<_>>();
    assert!(follower.poll().unwrap() && !follower.poll().unwrap());
    let fourth = line(4);
    let (first, rest) = fourth.split_at(20);
    let add = |text: &str| fs::write(&path, fs::read_to_string(&path).unwrap() + text).unwrap();
    add(first);
    assert!(follower.poll().unwrap());
    assert_eq!(steps(&follower), [1, 2, 3]);
    add(rest);
    assert!(follower.poll().unwrap());
    assert_eq!(steps(&follower), [1, 2, 3, 4]);
    // After a resume the file is another one, and shorter.
    fs::write(dir.join("new"), line(1) + &line(2)).unwrap();
    fs::rename(dir.join("new"), &path).unwrap();
    assert!(follower.poll().unwrap());
    assert_eq!(steps(&follower), [1, 2]);
}

#[test]
fn what_became_of_a_run() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    made::run(dir, 2);
    let state = || Run::read(dir).unwrap().state;
    assert_eq!(state(), RunState::Finished(None));
    let path = dir.join(".brigade.lock");
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    fs::write(&path, boot.trim()).unwrap();
    let lock = fs::File::options().append(true).open(&path).unwrap();
    lock.lock().unwrap();
    assert_eq!(state(), RunState::Running);
    drop(lock);
    let failed = brigade_report::RunEvent::Failed { reason: "rank 1 ended".into() };
    brigade_report::add_to_history(dir, 0.0, failed).unwrap();
    assert_eq!(state().to_string(), "failed: rank 1 ended");
    let history = fs::read_to_string(dir.join("history.jsonl")).unwrap();
    fs::write(dir.join("history.jsonl"), history.lines().next().unwrap()).unwrap();
    assert_eq!(state(), RunState::Killed);
    fs::remove_file(dir.join("history.jsonl")).unwrap();
    assert_eq!(state(), RunState::Killed, "a run of an older version, without weights");
    fs::write(dir.join("model.safetensors"), "").unwrap();
    assert_eq!(state(), RunState::Finished(None));
}

/// A run that has its folder and no step yet, and one that ended so.
#[test]
fn a_run_without_a_step_is_one_too() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("a");
    fs::create_dir(&dir).unwrap();
    let began = brigade_report::now();
    brigade_report::add_launch_to_history(&dir).unwrap();
    let lock = fs::File::create(dir.join(".brigade.lock")).unwrap();
    lock.lock().unwrap();
    let states = || [folder.path(), &dir].map(|dir| overviews(dir).unwrap().remove(0).unwrap().run.state);
    assert_eq!(states(), [RunState::Preparing, RunState::Preparing]);
    drop(lock);
    assert_eq!(states(), [RunState::Killed, RunState::Killed]);
    let failed = brigade_report::RunEvent::Failed { reason: "rank 1 ended".into() };
    brigade_report::add_to_history(&dir, began, failed).unwrap();
    assert_eq!(states().map(|state| state.to_string()), ["failed: rank 1 ended"; 2]);
}

#[test]
fn a_history_alone_says_on_what_a_run_is() {
    let folder = tempfile::tempdir().unwrap();
    made::run(folder.path(), 2);
    let history = fs::read_to_string(folder.path().join("history.jsonl")).unwrap();
    let run = Run::of_history("s3://b/a", &(history + "{\"time\":"), Some(made::record(2)), RunState::Killed);
    assert_eq!((run.ranks(), run.total_steps(), run.records.len()), (Some(4), Some(2), 1));
    assert_eq!(run.mesh(), [("pp".to_owned(), 2), ("dp".to_owned(), 2)]);
    assert!(Run::of_history("s3://b/a", "", None, RunState::Running).started().is_none());
}

#[test]
fn a_run_on_another_host_is_running_while_it_writes_steps() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    made::run(dir, 2);
    fs::write(dir.join(".brigade.lock"), "another start of another system").unwrap();
    let state = || overviews(dir).unwrap().remove(0).unwrap().run.state;
    assert_eq!(state(), RunState::Finished(None), "its history has an end");
    let history = fs::read_to_string(dir.join("history.jsonl")).unwrap();
    fs::write(dir.join("history.jsonl"), history.lines().next().unwrap()).unwrap();
    let mut follower = Follower::new(dir);
    follower.poll().unwrap();
    assert_eq!((state(), follower.run().unwrap().state), (RunState::Running, RunState::Running));
    // A minute and 20 steps later it must have written one.
    let metrics = fs::File::options().append(true).open(dir.join("metrics.jsonl")).unwrap();
    metrics.set_modified(std::time::SystemTime::now() - std::time::Duration::from_secs(90)).unwrap();
    assert!(follower.poll().unwrap());
    assert_eq!((state(), follower.run().unwrap().state), (RunState::Killed, RunState::Killed));
}

/// The losses that a follower has, after it looked again.
fn losses(follower: &mut Follower) -> Vec<f64> {
    follower.poll().unwrap();
    follower.records().map(|record| record.loss).collect()
}

#[test]
fn another_file_in_the_place_of_the_old_one_is_read_from_its_beginning() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("metrics.jsonl");
    let lines = |steps: std::ops::RangeInclusive<u64>, loss: f64| -> String {
        let line = |step| StepRecord { loss, ..made::record(step) };
        steps.map(|step| serde_json::to_string(&line(step)).unwrap() + "\n").collect()
    };
    // In place, as what is emptied and written again, and by a file that got the same inode.
    fs::write(&path, lines(1..=4, 9.0)).unwrap();
    let mut follower = Follower::new(folder.path());
    assert_eq!(losses(&mut follower), [9.0; 4]);
    fs::write(&path, lines(1..=6, 3.0)).unwrap();
    assert_eq!(losses(&mut follower), [3.0; 6]);
    fs::write(&path, lines(1..=6, 5.0)).unwrap();
    assert_eq!(losses(&mut follower), [5.0; 6], "as long as before");
    fs::write(&path, lines(1..=6, 5.0) + &lines(7..=7, 1.0)).unwrap();
    assert_eq!(losses(&mut follower), [5.0, 5.0, 5.0, 5.0, 5.0, 5.0, 1.0]);
}
