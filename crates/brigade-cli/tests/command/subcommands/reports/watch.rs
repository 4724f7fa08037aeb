//! `brigade watch` and `brigade runs`

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use crate::place::{Place, Running};

/// The address that a server says it has.
fn address(running: &mut Running) -> String {
    running.until("the server says its address", |running| {
        let said = running.said();
        Some(said.strip_prefix("http://")?.split_once('/')?.0.to_owned())
    })
}

/// The whole answer to a request.
fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn runs_are_listed_and_watched() {
    let place = Place::new();
    place.succeed(&mut place.train("--nproc-per-node 1 --steps 4 --out runs/a"));
    place.succeed(&mut place.train("--nproc-per-node 2 --steps 3 --out runs/b"));
    fs::create_dir(place.path("runs/empty")).unwrap();
    let listed = place.succeed(&mut place.brigade("runs")).out;
    let lines: Vec<Vec<&str>> = listed.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines.len(), 3, "{listed}");
    assert_eq!(
        (&lines[1][..3], &lines[2][..3]),
        (&["a", "finished", "4/4"][..], &["b", "finished", "3/3"][..])
    );

    let mut running = place.start(&mut place.brigade("watch runs --port 0"));
    let address = address(&mut running);
    let table = get(&address, "/");
    assert!(table.starts_with("HTTP/1.1 200") && table.contains("\"name\":\"b\""), "{table}");
    assert!(get(&address, "/run/a").contains("finished after step 4"));
    assert!(get(&address, "/run/empty").starts_with("HTTP/1.1 404"));
    assert!(get(&address, "/run/..%2Fruns%2Fa").starts_with("HTTP/1.1 404"));
}

#[test]
fn a_token_from_a_file_or_the_command_line_lets_in() {
    let place = Place::new();
    place.succeed(&mut place.train("--nproc-per-node 1 --steps 1 --out a"));
    let token = "0123456789abc&%?";
    fs::write(place.path("token"), format!("{token}\n")).unwrap();
    for (flags, shown) in [
        ("--token-file token".to_owned(), "?token=…"),
        (format!("--token {token}"), "?token=0123456789abc%26%25%3F"),
    ] {
        let mut running = place.start(&mut place.brigade(&format!("watch a --port 0 {flags}")));
        let address = address(&mut running);
        assert!(running.said().contains(shown), "{}", running.said());
        assert!(get(&address, "/?token=0123456789abc%26%25%3F").starts_with("HTTP/1.1 200"));
        assert!(get(&address, "/?token=another").starts_with("HTTP/1.1 403"));
    }
}

#[test]
fn a_port_in_use_and_other_hosts_without_a_token_are_refused() {
    let place = Place::new();
    place.succeed(&mut place.train("--nproc-per-node 1 --steps 1 --out a"));
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let in_use = format!("--port {port} is in use on 127.0.0.1");
    for (line, said) in [
        (format!("watch a --port {port}"), in_use.as_str()),
        ("watch a --host 0.0.0.0".into(), "--host 0.0.0.0 lets other machines see the runs; give --token"),
        (
            "watch a --token a&b".into(),
            "--token is not valid: the token has 3 characters; it must have 16 to 256",
        ),
        ("watch a --token-file none".into(), "--token-file none: No such file"),
        ("watch text --port 0".into(), "text has no runs in it"),
        ("runs nowhere".into(), "nowhere is not a folder"),
    ] {
        let done = place.run(&mut place.brigade(&line));
        assert_ne!(done.code, Some(0), "{line}");
        assert!(done.err.contains(said) && done.err.lines().count() == 1, "{line}: {}", done.err);
    }
}
