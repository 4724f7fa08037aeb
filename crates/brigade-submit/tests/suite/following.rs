//! A job on its way, with a program of the test's own in place of the system's.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use brigade_submit::{
    Answer, Commands, Console, Controller, Ending, Folders, Job, JobState, Kubernetes, LeftOver, Manifest,
    Result, System, check_by_system, submit,
};

use crate::jobs::{CONTROLLERS, job, kubernetes, slurm};

/// A system whose program is a shell: each command is a script.
struct Shell {
    submit: &'static str,
    logs: &'static str,
    state: &'static str,
    cancel: &'static str,
}

impl System for Shell {
    fn name(&self) -> &'static str {
        "shell"
    }

    fn check(&self, _: &Job) -> Result<()> {
        Ok(())
    }

    fn manifests(&self, _: &Job) -> Vec<Manifest> {
        vec![Manifest { file: "manifest".into(), text: "text\n".into() }]
    }

    fn commands(&self, _: &Job) -> Commands {
        let script = |text: &str| ["sh", "-c", text].map(str::to_owned).to_vec();
        Commands {
            check: None,
            submit: script(self.submit),
            logs: script(self.logs),
            logs_have_times: false,
            waiting: None,
            state: script(self.state),
            cancel: script(self.cancel),
        }
    }

    fn waits_for(&self, state: &str, _: &str) -> Option<String> {
        state.trim().strip_prefix("waits for ").map(str::to_owned)
    }

    fn state_of(&self, text: &str) -> JobState {
        match text.trim() {
            "done" => JobState::Done,
            "failed" => JobState::Failed,
            _ => JobState::Active,
        }
    }
}

/// Submits with these answers to Ctrl-C, which comes as often as there are answers.
fn follow(system: &dyn System, folder: &Path, answers: &[Answer]) -> (Result<Ending>, String) {
    let (mut said, mut asked) = (String::new(), 0);
    let interrupted = AtomicBool::new(!answers.is_empty());
    let mut ask = || {
        asked += 1;
        interrupted.store(asked < answers.len(), Ordering::SeqCst);
        answers[asked - 1]
    };
    let mut say = |line: &str| said.push_str(&format!("{line}\n"));
    let mut console = Console { say: &mut say, interrupted: &interrupted, ask: &mut ask };
    let manifests = tempfile::tempdir().unwrap();
    let folders = Folders { manifests: manifests.path(), current: folder };
    let ending = submit(system, &job("train --out a"), folders, &mut console);
    (ending, said)
}

const FINE: Shell = Shell {
    submit: "cat {manifest} >seen; echo submitted as; echo '17;cluster'",
    logs: "echo output of {id} >>logs",
    state: "echo done",
    cancel: "echo {id} >cancelled",
};

#[test]
fn a_job_is_followed_to_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let (ending, said) = follow(&FINE, folder.path(), &[]);
    assert_eq!(ending.unwrap(), Ending::Done);
    assert!(said.starts_with("submitted llama-7b, which shell knows as 17\n"), "{said}");
    assert!(said.contains("to cancel it: sh -c 'echo 17 >cancelled'"), "{said}");
    let text = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap_or_default();
    assert_eq!(
        (text("seen").as_str(), text("logs").as_str(), text("cancelled").as_str()),
        ("text\n", "output of 17\n", "")
    );
    assert!(!folder.path().join("manifest").exists());
    let failed = Shell { state: "echo failed", ..FINE };
    assert_eq!(follow(&failed, folder.path(), &[]).0.unwrap(), Ending::Failed);
}

/// Kubernetes, with a script in place of `kubectl`.
struct Fake {
    kubernetes: Kubernetes,
    kubectl: String,
}

impl System for Fake {
    fn name(&self) -> &'static str {
        self.kubernetes.name()
    }

    fn check(&self, job: &Job) -> Result<()> {
        self.kubernetes.check(job)
    }

    fn manifests(&self, job: &Job) -> Vec<Manifest> {
        self.kubernetes.manifests(job)
    }

    fn left_over(&self, job: &Job) -> Option<LeftOver> {
        let mut left_over = self.kubernetes.left_over(job)?;
        left_over.find.splice(..1, ["sh".to_owned(), self.kubectl.clone()]);
        Some(left_over)
    }

    fn commands(&self, job: &Job) -> Commands {
        let mut commands = self.kubernetes.commands(job);
        let waiting = commands.waiting.as_mut().unwrap();
        for words in
            [&mut commands.submit, &mut commands.logs, &mut commands.state, waiting, &mut commands.cancel]
        {
            words.splice(..1, ["sh".to_owned(), self.kubectl.clone()]);
        }
        commands
    }

    fn state_of(&self, text: &str) -> JobState {
        self.kubernetes.state_of(text)
    }
}

#[test]
fn a_job_of_kubernetes_has_the_name_of_its_object() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("kubectl");
    // As kubectl prints it, for each object of a list.
    let kubectl = r#"case "$*" in
        *trainjob.json*-o\ name) echo trainingruntime.trainer.kubeflow.org/llama-7b; echo trainjob.trainer.kubeflow.org/llama-7b ;;
        *create*-o\ name) echo jobset.jobset.x-k8s.io/llama-7b ;;
        *create*) echo jobset.jobset.x-k8s.io/llama-7b created ;;
        *get*) echo Completed ;;
    esac"#;
    std::fs::write(&script, kubectl).unwrap();
    for (controller, object) in [
        (Controller::JobSet, "jobset.jobset.x-k8s.io/llama-7b"),
        (Controller::TrainJob, "trainjob.trainer.kubeflow.org/llama-7b"),
    ] {
        let fake = Fake { kubernetes: kubernetes(controller), kubectl: script.display().to_string() };
        let (ending, said) = follow(&fake, folder.path(), &[]);
        assert_eq!(ending.unwrap(), Ending::Done);
        let known = format!("submitted llama-7b, which {} knows as {object}\n", fake.name());
        assert!(said.starts_with(&known), "{said}");
    }
}

#[test]
fn what_is_left_of_another_trainjob_is_named_before_and_after() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("kubectl");
    let fake = Fake { kubernetes: kubernetes(Controller::TrainJob), kubectl: script.display().to_string() };
    let submitted = |kubectl: &str| {
        std::fs::write(&script, kubectl).unwrap();
        std::fs::write(folder.path().join("asked"), "").unwrap();
        follow(&fake, folder.path(), &[]).0.map_err(|error| (error.is_usage(), error.to_string()))
    };
    let delete = "kubectl --namespace=ml delete trainingruntime.trainer.kubeflow.org/llama-7b";
    let there = r#"case "$*" in
        *get\ trainjob/llama-7b\ trainingruntime/llama-7b\ --ignore-not-found*) echo trainingruntime.trainer.kubeflow.org/llama-7b ;;
        *) touch created ;;
    esac"#;
    let (is_usage, said) = submitted(there).unwrap_err();
    assert!(is_usage && said.starts_with("--name llama-7b is not possible: the cluster has "), "{said}");
    assert!(
        said.ends_with(&format!("delete it with {delete}")) && !folder.path().join("created").exists(),
        "{said}"
    );
    let folders = Folders { manifests: &folder.path().join("jobs"), current: folder.path() };
    let asked = check_by_system(&fake, &job("train --out a"), folders).unwrap_err();
    assert_eq!(asked.to_string(), said);
    // The runtime is made, and then the cluster refuses the job.
    let half = r#"case "$*" in
        *ignore-not-found*) cat asked; echo trainingruntime.trainer.kubeflow.org/llama-7b >asked ;;
        *create*) echo 'denied by a webhook' >&2; exit 1 ;;
    esac"#;
    let (is_usage, said) = submitted(half).unwrap_err();
    assert!(
        !is_usage && said.contains("denied by a webhook; only a part of llama-7b was submitted"),
        "{said}"
    );
    assert!(said.ends_with(&format!(": delete it with {delete}")), "{said}");
    // Who may not ask is told by the cluster itself.
    let forbidden = r#"case "$*" in
        *ignore-not-found*) echo 'Error from server (Forbidden): no' >&2; exit 1 ;;
        *create*) echo trainjob.trainer.kubeflow.org/llama-7b ;;
        *get*) echo Complete ;;
    esac"#;
    assert_eq!(submitted(forbidden).unwrap(), Ending::Done);
}

#[test]
fn a_job_that_waits_says_why() {
    let folder = tempfile::tempdir().unwrap();
    // Done when it is asked again.
    let waits = Shell {
        logs: "echo nothing yet >&2",
        state: "if [ -e asked ]; then echo done; else touch asked; echo waits for room; fi",
        ..FINE
    };
    let (ending, said) = follow(&waits, folder.path(), &[]);
    assert_eq!(ending.unwrap(), Ending::Done);
    assert_eq!(said.matches("it waits: room\n").count(), 1, "{said}");
    assert_eq!(said.matches("its output: nothing yet\n").count(), 1, "{said}");
    let why = |state: &str| {
        slurm().waits_for(&format!("JobId=7 JobState={state} Reason=Resources Dependency="), "")
    };
    assert_eq!((why("PENDING").as_deref(), why("RUNNING")), (Some("PENDING, Resources"), None));
    let suspended = kubernetes(Controller::JobSet).waits_for("Suspended", "");
    assert!(suspended.is_some_and(|why| why.contains("suspended")));
}

#[test]
fn ctrl_c_asks_before_it_cancels() {
    let folder = tempfile::tempdir().unwrap();
    let active = Shell { state: "echo running", ..FINE };
    let cancelled = || folder.path().join("cancelled").exists();
    assert_eq!(follow(&active, folder.path(), &[Answer::Follow, Answer::Leave]).0.unwrap(), Ending::Left);
    assert!(!cancelled());
    assert_eq!(follow(&active, folder.path(), &[Answer::Cancel]).0.unwrap(), Ending::Cancelled);
    assert!(cancelled());
}

/// Long before the question for its state is given up.
#[test]
fn ctrl_c_is_answered_while_the_system_says_nothing() {
    const LONG: Duration = Duration::from_secs(20);
    let (folder, manifests) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let silent = Shell { state: "touch asked; exec sleep 600", ..FINE };
    let folders = Folders { manifests: manifests.path(), current: folder.path() };
    let interrupted = AtomicBool::new(false);
    let begin = Instant::now();
    let ending = thread::scope(|scope| {
        scope.spawn(|| {
            while !folder.path().join("asked").exists() && begin.elapsed() < LONG {
                thread::sleep(Duration::from_millis(10));
            }
            interrupted.store(true, Ordering::SeqCst);
        });
        let mut console = Console { say: &mut |_| {}, interrupted: &interrupted, ask: &mut || Answer::Leave };
        submit(&silent, &job("train --out a"), folders, &mut console)
    });
    assert_eq!(ending.unwrap(), Ending::Left);
    assert!(begin.elapsed() < LONG, "{:?}", begin.elapsed());
}

#[test]
fn questions_to_kubernetes_have_deadlines() {
    for controller in CONTROLLERS {
        let system = kubernetes(controller);
        let commands = system.commands(&job("train --out /data/a"));
        for words in [commands.state, commands.waiting.unwrap(), system.quotas().unwrap()] {
            assert!(words.contains(&"--request-timeout=10s".into()), "{words:?}");
        }
    }
}

#[test]
fn a_job_without_an_id_is_not_followed() {
    let folder = tempfile::tempdir().unwrap();
    for submit in ["true", "echo ';cluster'"] {
        let (ending, said) = follow(&Shell { submit, ..FINE }, folder.path(), &[]);
        let message = ending.unwrap_err().to_string();
        assert!(message.contains("printed no job id") && said.is_empty(), "{message} {said}");
    }
}

#[test]
fn what_slurm_calls_a_job_that_it_may_start_again() {
    let state = |name: &str| slurm().state_of(&format!("JobId=7 JobName=a JobState={name} Reason=None"));
    for name in ["PREEMPTED", "NODE_FAIL", "REVOKED", "LAUNCH_FAILED"] {
        assert_eq!(state(name), JobState::Ended, "{name}");
    }
    assert_eq!((state("REQUEUED"), state("TIMEOUT")), (JobState::Active, JobState::Failed));
}

#[test]
fn what_the_systems_program_says_is_shown() {
    let folder = tempfile::tempdir().unwrap();
    let refused = Shell { submit: "echo no such queue >&2; exit 3", ..FINE };
    let message = follow(&refused, folder.path(), &[]).0.unwrap_err().to_string();
    assert!(message.ends_with("ended with exit status: 3: no such queue"), "{message}");
    assert!(!folder.path().join("logs").exists());
}
