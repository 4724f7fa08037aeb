//! Output, logs, environment, failures and signals of a world on one node.

use std::{
    env, fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    os::unix::process::CommandExt,
    thread,
    time::{Duration, Instant},
};

use brigade_launch::{AuthToken, Event, ExitReason, LaunchConfig, Outcome, inherited_listener, launch};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::{
    process::{PATIENCE, end, exit_code, has_role, itself, signal, wait_until},
    worlds::{becomes, failure, launcher, log, pids, run, runs, shell, state},
};

/// Not a test by itself: a rank that other tests start.
#[test]
fn rank_process() {
    if !has_role("launcher::rank_process") {
        return;
    }
    let token = env::var("BRIGADE_TOKEN").unwrap();
    let port: u16 = env::var("MASTER_PORT").unwrap().parse().unwrap();
    let listener = inherited_listener().unwrap();
    assert!(inherited_listener().unwrap().is_none(), "the socket can be taken once");
    match (env::var("RANK").unwrap().as_str(), listener) {
        ("0", Some(listener)) => {
            assert_eq!(listener.local_addr().unwrap().port(), port);
            for _ in 1..3 {
                let mut said = String::new();
                listener.accept().unwrap().0.read_to_string(&mut said).unwrap();
                assert_eq!(said, token);
            }
        }
        ("1" | "2", None) => {
            let mut stream = TcpStream::connect((env::var("MASTER_ADDR").unwrap().as_str(), port)).unwrap();
            stream.write_all(token.as_bytes()).unwrap();
        }
        other => panic!("{other:?}"),
    }
    if env::var("TEST_PANIC").is_ok_and(|rank| rank == env::var("RANK").unwrap()) {
        panic!("the block of layer 3 is not finite");
    }
}

#[test]
fn a_run_succeeds_with_environment_and_logs() {
    let dir = TempDir::new().unwrap();
    let script = r#"echo "$RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK $MASTER_ADDR $BRIGADE_LAUNCHED ${#BRIGADE_TOKEN}"
        test "$MASTER_PORT" -gt 0 && echo "fd ${BRIGADE_RDZV_FD:+given}" >&2; read line || echo no input"#;
    let (outcome, events) = run(&shell(script, 3, dir.path()));
    assert_eq!((&outcome, outcome.exit_code()), (&Outcome::Done, 0));
    for rank in 0..3 {
        let text = log(dir.path(), rank);
        assert!(text.contains(&format!("{rank} {rank} 3 3 0 127.0.0.1 1 64\n")), "{text}");
        assert_eq!(text.contains("fd given\n"), rank == 0, "{text}");
        assert!(text.contains("no input\n"), "{text}");
    }
    assert_eq!(
        events.iter().filter(|event| matches!(event, Event::Exited(end) if !end.stopped_by_launcher)).count(),
        3
    );
}

#[test]
fn an_exit_code_ends_the_run_and_is_reported() {
    for (code, launcher_code) in [(3, 1), (2, 2), (130, 130)] {
        let dir = TempDir::new().unwrap();
        let script =
            format!("test $RANK = 0 && exec sleep 1000; echo reading; echo no such file >&2; exit {code}");
        let started = Instant::now();
        let (outcome, _) = run(&shell(&script, 2, dir.path()));
        assert!(started.elapsed() < PATIENCE);
        assert_eq!(outcome.exit_code(), launcher_code);
        let report = outcome.to_string();
        let failure = failure(outcome);
        assert_eq!((failure.root_cause.rank, failure.root_cause.reason), (1, ExitReason::Code(code)));
        assert!(report.starts_with(&format!("rank 1 failed: exit code {code}")), "{report}");
        assert!(report.contains("no such file") && report.contains("rank-1.log"), "{report}");
        let other = failure.others[0].exit;
        assert_eq!((other.rank, other.reason, other.stopped_by_launcher), (0, ExitReason::Signal(2), true));
    }
}

#[test]
fn a_killed_rank_is_blamed_before_its_witness() {
    let dir = TempDir::new().unwrap();
    let script = r#"if test $RANK = 1; then echo $$ > "$DIR/tmp"; mv "$DIR/tmp" "$DIR/pid.1"; kill -9 $$; fi
        until test -e "$DIR/pid.1"; do sleep 0.02; done
        while kill -0 $(cat "$DIR/pid.1") 2>/dev/null; do sleep 0.02; done
        echo rank 1 is gone; exit 1"#;
    let failure = failure(run(&shell(script, 3, dir.path())).0);
    assert_eq!((failure.root_cause.rank, failure.root_cause.reason), (1, ExitReason::Signal(9)));
    assert!(failure.to_string().starts_with("rank 1 failed: killed by SIGKILL (9)"), "{failure}");
}

#[test]
fn a_rank_that_ignores_sigint_is_killed() {
    let dir = TempDir::new().unwrap();
    let script = r#"if test $RANK = 1; then until test -e "$DIR/ready"; do sleep 0.02; done; exit 3; fi
        trap '' INT; touch "$DIR/ready"; while :; do sleep 0.1; done"#;
    let mut what = shell(script, 2, dir.path());
    what.grace_period = Duration::from_millis(200);
    let (outcome, events) = run(&what);
    assert!(events.iter().any(|event| matches!(event, Event::Killed { ranks } if ranks == &[0])));
    let failure = failure(outcome);
    assert_eq!((failure.root_cause.rank, failure.others[0].exit.reason), (1, ExitReason::Signal(9)));
}

#[test]
fn what_a_rank_started_ends_with_it() {
    let dir = TempDir::new().unwrap();
    let script = r#"sleep 1000 & echo $! > "$DIR/pid.$RANK""#;
    assert_eq!(run(&shell(script, 2, dir.path())).0, Outcome::Done);
    for pid in pids(dir.path(), 2) {
        wait_until("the grandchild ends", || !runs(&pid));
    }
}

#[test]
fn a_program_that_is_not_there_is_named() {
    let dir = TempDir::new().unwrap();
    let what = LaunchConfig::local("/nowhere/program", 2, AuthToken::random().unwrap(), dir.path());
    let message = launch(&what, &mut |_| {}).unwrap_err().to_string();
    assert!(message.contains("rank 0") && message.contains("/nowhere/program"), "{message}");
    let message = launch(&shell("", 0, dir.path()), &mut |_| {}).unwrap_err().to_string();
    assert!(message.contains("nproc is 0"), "{message}");
}

#[test]
fn the_listening_socket_and_the_token_reach_the_ranks() {
    let dir = TempDir::new().unwrap();
    let mut what = shell(&becomes("launcher::rank_process"), 3, dir.path());
    let (outcome, _) = run(&what);
    assert_eq!(outcome, Outcome::Done, "{outcome}");
    what.env.push(("TEST_PANIC".into(), "2".into()));
    let failure = failure(run(&what).0);
    assert_eq!((failure.root_cause.rank, failure.root_cause.reason), (2, ExitReason::Code(101)));
    assert!(failure.panic[0].contains("panicked at") && failure.panic[1].contains("layer 3"), "{failure}");
    assert!(failure.to_string().starts_with("rank 2 failed: panic, exit code 101"), "{failure}");
}

/// Not a test by itself: a process whose `BRIGADE_RDZV_FD` is not what it should be.
#[test]
fn misled_process() {
    if has_role("launcher::misled_process") {
        eprintln!("{}", inherited_listener().unwrap_err());
    }
}

#[test]
fn a_descriptor_that_is_not_the_launchers_is_refused() {
    for (value, said) in
        [("abc", "not a descriptor"), ("1", "not a descriptor"), ("999", "Bad file descriptor")]
    {
        let output = itself("launcher::misled_process").env("BRIGADE_RDZV_FD", value).output().unwrap();
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success() && message.contains(said) && message.contains(value), "{message}");
    }
}

#[test]
fn signals_to_the_launcher_end_all_ranks() {
    for kind in [Signal::INT, Signal::TERM] {
        let dir = TempDir::new().unwrap();
        let script = r#"sleep 1000 & echo $! > "$DIR/pid.$RANK.child"; echo $$ > "$DIR/pid.$RANK"; wait"#;
        let mut child = launcher(script, 2, dir.path()).spawn().unwrap();
        let pids = pids(dir.path(), 4);
        signal(&child, kind);
        assert_eq!(exit_code(&mut child), Some(130));
        for pid in pids {
            wait_until("the ranks end", || !runs(&pid));
        }
    }
}

#[test]
fn a_second_signal_kills_at_once() {
    let dir = TempDir::new().unwrap();
    let script = r#"trap '' TERM; echo $$ > "$DIR/pid.$RANK"; while :; do sleep 0.1; done"#;
    let mut child = launcher(script, 2, dir.path()).env("TEST_GRACE", "1000").spawn().unwrap();
    let pids = pids(dir.path(), 2);
    signal(&child, Signal::TERM);
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "got SIGTERM (15)"));
    assert!(pids.iter().all(|pid| runs(pid)));
    signal(&child, Signal::INT);
    assert_eq!(exit_code(&mut child), Some(130));
    assert!(!pids.iter().any(|pid| runs(pid)));
}

#[test]
fn stopping_and_continuing_the_launcher_does_so_to_its_ranks() {
    let dir = TempDir::new().unwrap();
    let script = r#"echo $$ > "$DIR/pid.$RANK"; while :; do :; done"#;
    let mut child = launcher(script, 1, dir.path()).spawn().unwrap();
    let all = [pids(dir.path(), 1).remove(0), child.id().to_string()];
    signal(&child, Signal::TSTP);
    wait_until("both are stopped", || all.iter().all(|pid| state(pid) == Some('T')));
    signal(&child, Signal::CONT);
    wait_until("both go on", || all.iter().all(|pid| state(pid) != Some('T')));
    signal(&child, Signal::TERM);
    assert_eq!(exit_code(&mut child), Some(130));
    assert!(!runs(&all[0]));
}

#[cfg(target_os = "linux")]
#[test]
fn a_killed_launcher_takes_its_ranks_along() {
    let dir = TempDir::new().unwrap();
    let script = r#"trap '' TERM HUP; echo $$ > "$DIR/pid.$RANK"; exec sleep 1000"#;
    let mut child = launcher(script, 2, dir.path()).spawn().unwrap();
    let pids = pids(dir.path(), 2);
    signal(&child, Signal::KILL);
    assert_eq!(exit_code(&mut child), None);
    for pid in pids {
        wait_until("the ranks end", || !runs(&pid));
    }
}

#[test]
fn rank_zero_is_passed_through_and_the_others_are_prefixed_on_request() {
    let script = r#"printf 'out %s\npart' $RANK; printf 'err %s\n' $RANK >&2"#;
    for tee in [false, true] {
        let dir = TempDir::new().unwrap();
        let mut command = launcher(script, 2, dir.path());
        if tee {
            command.env("TEST_TEE", "1");
        }
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        let (out, err) =
            (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        assert!(out.contains("out 0\npart") && err.contains("err 0\n"), "{out} {err}");
        for line in ["[rank 1] out 1\n", "[rank 1] part\n"] {
            assert_eq!(out.contains(line), tee, "{out}");
        }
        assert_eq!(err.contains("[rank 1] err 1\n"), tee, "{err}");
        let mut lines: Vec<String> = log(dir.path(), 1).lines().map(Into::into).collect();
        lines.sort();
        assert_eq!(lines, ["err 1", "out 1", "part"]);
    }
}

#[test]
fn rank_zero_has_a_terminal_where_the_launcher_has_one() {
    use rustix::{fs, pty, termios};
    let dir = TempDir::new().unwrap();
    let screen = pty::openpt(pty::OpenptFlags::RDWR | pty::OpenptFlags::NOCTTY).unwrap();
    pty::grantpt(&screen).unwrap();
    pty::unlockpt(&screen).unwrap();
    let name = pty::ptsname(&screen, Vec::new()).unwrap();
    let side = fs::open(name, fs::OFlags::RDWR | fs::OFlags::NOCTTY | fs::OFlags::CLOEXEC, fs::Mode::empty())
        .unwrap();
    let size = termios::Winsize { ws_row: 40, ws_col: 101, ws_xpixel: 0, ws_ypixel: 0 };
    termios::tcsetwinsize(&screen, size).unwrap();
    let script =
        r#"test -t 1 && test -t 2 && printf '\rbar 1\rbar 2\r\033[2Kterminal %s\n' "$(stty size 0<&2)""#;
    let mut command = launcher(script, 2, dir.path());
    command.stdout(side.try_clone().unwrap()).stderr(side);
    let mut child = command.process_group(0).spawn().unwrap();
    drop(command);
    let reader = thread::spawn(move || {
        let (mut screen, mut shown) = (std::fs::File::from(screen), vec![]);
        // It ends with an error when the other side is closed.
        let _ = screen.read_to_end(&mut shown);
        String::from_utf8_lossy(&shown).into_owned()
    });
    assert_eq!(exit_code(&mut child), Some(1), "rank 1 has no terminal");
    let shown = reader.join().unwrap();
    assert!(shown.contains("\rbar 1\rbar 2\r\u{1b}[2Kterminal 40 101\r\n"), "{shown:?}");
    assert_eq!(log(dir.path(), 0), "terminal 40 101\n");
    assert_eq!(log(dir.path(), 1), "");
}

/// Also where a launcher was told to ignore Ctrl-C.
#[test]
fn a_launcher_can_stop_its_ranks_by_itself() {
    let dir = TempDir::new().unwrap();
    let script = r#"trap '' INT TERM; echo $$ > "$DIR/pid.$RANK"; while :; do sleep 0.05; done"#;
    let mut command = launcher(script, 2, dir.path());
    command.env("TEST_STOP_AT", dir.path().join("now")).env("TEST_GRACE", "1000").env("TEST_RESTARTS", "3");
    let child = command.spawn().unwrap();
    let pids = pids(dir.path(), 2);
    fs::write(dir.path().join("now"), "").unwrap();
    let (code, said) = end(child);
    assert_eq!(code, Some(130), "{said}");
    assert!(!pids.iter().any(|pid| runs(pid)), "{said}");
}
