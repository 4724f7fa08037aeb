//! What the scripts for Slurm and for hosts over SSH do when a shell runs them.

use std::process::Command;

use brigade_submit::{Job, Slurm, Ssh, System, Token};

use crate::jobs::{job, slurm, ssh, words};
use crate::manifests::TRAIN;

/// Runs a script with programs of these names and bodies in its path, and says what it printed and its code.
fn run(script: &str, programs: &[(&str, &str)]) -> (String, Option<i32>) {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    for (name, body) in programs {
        let path = folder.path().join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    }
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    let output = Command::new("bash")
        .args(["-c", script])
        .env("PATH", path)
        .env("SLURM_JOB_ID", "7")
        .output()
        .unwrap();
    (String::from_utf8(output.stdout).unwrap(), output.status.code())
}

#[test]
fn the_script_of_slurm_starts_again_after_75_alone() {
    let script = slurm().manifests(&job(TRAIN))[0].text.clone();
    for line in [
        "--requeue",
        "--signal=TERM@150",
        "--open-mode=append",
        "--nodes=4",
        "--ntasks-per-node=1",
        "--gpus-per-node=8",
        "--exclusive",
        "--mem=0",
        "--partition=gpu",
        "--switches=1",
        "--constraint=h100",
    ] {
        assert!(script.contains(&format!("#SBATCH {line}\n")), "{line}: {script}");
    }
    let without = |system: &Slurm, lines: &[&str]| {
        let script = system.manifests(&job(TRAIN))[0].text.clone();
        for line in lines {
            assert!(!script.contains(&format!("#SBATCH {line}")), "{line}: {script}");
        }
    };
    without(&Slurm { shared_nodes: true, ..slurm() }, &["--exclusive", "--mem"]);
    let with = |options: &str| Slurm { options: words(options), ..slurm() };
    without(&with("--exclusive=user"), &["--exclusive\n", "--mem"]);
    without(&with("--mem=64G"), &["--mem=0"]);
    without(&with("--gres=gpu:h100:8"), &["--gpus-per-node"]);
    let commented = Slurm { options: vec!["--comment=my job".into()], ..slurm() };
    let text = &commented.manifests(&job(TRAIN))[0].text;
    assert!(text.contains("#SBATCH --comment=\"my job\"\n"), "{text}");
    let shows =
        |state| ("scontrol", format!("case $1 in show) echo JobId=7 JobState={state} ;; *) echo $* ;; esac"));
    let outcome = |code: u8, state| {
        let srun = format!(
            "for word; do printf '%s|' \"$word\"; done; echo; echo \"$HF_HOME $(printf %s \"$BRIGADE_TOKEN\" | wc -c)\"; exit {code}"
        );
        let (name, scontrol) = shows(state);
        run(&script, &[("srun", &srun), (name, &scontrol)])
    };
    let (_, code) = outcome(75, "SIGNALING");
    assert_eq!(code, Some(0));
    let (printed, code) = outcome(75, "RUNNING");
    assert_eq!(code, Some(0));
    assert!(printed.ends_with("\n/data/it's here 48\nrequeue 7\n"), "{printed}");
    assert!(
        printed.contains("brigade|train|--max-restarts|3|--nproc-per-node|8|")
            && printed.contains("|train.steps=[1,2]|"),
        "{printed}"
    );
    for (code, state) in [(75, "CANCELLED"), (75, "COMPLETING"), (1, "RUNNING"), (0, "RUNNING")] {
        let (printed, ended) = outcome(code, state);
        assert!(ended == Some(code.into()) && !printed.contains("requeue"), "{code} {state}: {printed}");
    }
    let file = Slurm { token: Token::File("/home/me/a token".into()), ..slurm() };
    let script = &file.manifests(&job(TRAIN))[0].text;
    assert!(
        script.contains("export BRIGADE_TOKEN_FILE='/home/me/a token'\n") && !script.contains("urandom"),
        "{script}"
    );
}

/// A shell stands for the connection and the host.
#[test]
fn a_host_takes_its_token_from_its_input_and_ends_with_it() {
    let job = Job { nodes: 2, program: "./own".into(), ..job("--out a") };
    let ssh = ssh("me@one,two");
    ssh.check(&job).unwrap();
    let command = ssh.command(&job, 1);
    assert_eq!(command[command.len() - 2], "two");
    assert!(command.last().unwrap().contains("--node-rank 1 --rdzv-endpoint one:29400"), "{command:?}");
    let elastic = ssh.script(&Job { least_nodes: Some(1), ..job.clone() }, 1);
    assert!(elastic.contains(" --nnodes 1:2 --node-rank 1 "), "{elastic}");
    for (hosts, address, endpoint) in [
        ("::1,::2", None, "[::1]:29400"),
        ("me@[fe80::1],two", None, "[fe80::1]:29400"),
        ("one,two", Some("fe80::2"), "[fe80::2]:29400"),
        ("one,two", Some("10.0.0.1"), "10.0.0.1:29400"),
    ] {
        let ssh = Ssh { address: address.map(str::to_owned), ..crate::jobs::ssh(hosts) };
        ssh.check(&job).unwrap();
        let script = ssh.script(&job, 0).replace('\'', "");
        assert!(script.contains(&format!("--rdzv-endpoint {endpoint} ")), "{script}");
        let command = ssh.command(&job, 0);
        assert!(!command[command.len() - 2].contains(['[', ']']), "{command:?}");
    }
    let folder = tempfile::tempdir().unwrap();
    let mut here = ssh.clone();
    here.folder = Some(folder.path().display().to_string());
    let program = "#!/bin/sh\ntrap 'echo saved; exit 75' TERM\nenv | grep BRIGADE_TOKEN\necho \"$*\" | grep -o token-of-16\nwhile :; do sleep 0.02; done\n";
    std::fs::write(folder.path().join("own"), program).unwrap();
    let mode = Command::new("chmod").arg("+x").arg(folder.path().join("own")).status().unwrap();
    assert!(mode.success());
    let mut host = Command::new("sh")
        .args(["-c", here.command(&job, 1).last().unwrap()])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = host.stdin.take().unwrap();
    std::io::Write::write_all(&mut input, b"token-of-16-letters\n").unwrap();
    let mut output = std::io::BufReader::new(host.stdout.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut output, &mut line).unwrap();
    assert_eq!(line, "BRIGADE_TOKEN=token-of-16-letters\n");
    drop(input);
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut output, &mut rest).unwrap();
    assert_eq!((rest.as_str(), host.wait().unwrap().code()), ("saved\n", Some(75)));
}
