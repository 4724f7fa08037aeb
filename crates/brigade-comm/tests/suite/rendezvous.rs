//! How worlds form, and how they fail to.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use brigade_comm::{AuthToken, Error, Join, Result, Timeouts, Transport, World, join};

use crate::worlds::{Kind, PATIENT, SOON, joining, listener};

const SHORT: Timeouts = Timeouts { init: Duration::from_secs(3), ..PATIENT };

/// Lets ranks join at the same time and returns the outcomes.
fn join_all(joins: Vec<Join>) -> Vec<Result<World>> {
    std::thread::scope(|scope| {
        let ranks: Vec<_> = joins.into_iter().map(|rank| scope.spawn(move || join(rank))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn failures(joins: Vec<Join>) -> Vec<String> {
    join_all(joins).into_iter().map(|outcome| outcome.err().expect("no world").to_string()).collect()
}

#[test]
fn a_world_of_one_needs_nobody() {
    let world = join(joining(Kind::SharedMemory, 0, 1, &listener(), SHORT)).unwrap();
    let mut slice = [1.0f32, 2.0];
    world.group().all_reduce_in_place(&mut slice, brigade_comm::ReduceOp::Sum).unwrap();
    assert_eq!(slice, [1.0, 2.0]);
    world.group().split("half", 3, 0).unwrap().barrier().unwrap();
    world.shutdown().unwrap();
}

#[test]
fn rank_0_can_bind_the_endpoint_itself() {
    let port = listener().local_addr().unwrap().port();
    for endpoint in [format!("127.0.0.1:{port}"), format!("localhost:{port}")] {
        let joins = (0..2).map(|rank| Join {
            endpoint: endpoint.clone(),
            listener: None,
            ..joining(Kind::Mixed, rank, 2, &listener(), PATIENT)
        });
        let worlds = join_all(joins.collect());
        std::thread::scope(|scope| {
            for world in worlds {
                scope.spawn(|| world.unwrap().shutdown().unwrap());
            }
        });
    }
}

#[test]
fn who_is_missing_is_named() {
    let listener = listener();
    let joins = [(0, SHORT), (2, PATIENT)].map(|(rank, wait)| joining(Kind::Tcp, rank, 4, &listener, wait));
    let errors = failures(joins.into());
    assert!(errors[0].contains("ranks [1, 3] of 4 did not connect"), "{}", errors[0]);
    assert!(errors[1].contains("rank 2 was refused") && errors[1].contains("[1, 3]"), "{}", errors[1]);
}

#[test]
fn nobody_at_the_endpoint() {
    let endpoint = listener().local_addr().unwrap().to_string();
    let start = Instant::now();
    let rank = Join { endpoint, ..joining(Kind::Tcp, 1, 2, &listener(), SHORT) };
    let error = join(rank).err().unwrap();
    assert!(matches!(error, Error::Unreachable { rank: 1, .. }), "{error}");
    assert!(start.elapsed() < SOON);
}

#[test]
fn a_port_in_use() {
    let taken = listener();
    let rank = Join { listener: None, ..joining(Kind::Tcp, 0, 2, &taken, SHORT) };
    let error = join(rank).err().unwrap();
    assert!(matches!(&error, Error::Listen { endpoint, .. } if endpoint.contains("127.0.0.1")), "{error}");
    assert!(error.to_string().contains("in use"), "{error}");
}

#[test]
fn ranks_that_do_not_fit() {
    let at = listener();
    let twice = failures(vec![
        joining(Kind::Tcp, 0, 3, &at, PATIENT),
        joining(Kind::Tcp, 1, 3, &at, PATIENT),
        joining(Kind::Tcp, 1, 3, &at, PATIENT),
    ]);
    assert!(twice.iter().all(|error| error.contains("rank 1 connected twice")), "{twice:?}");

    let at = listener();
    let sizes =
        failures(vec![joining(Kind::Tcp, 0, 2, &at, PATIENT), joining(Kind::Tcp, 1, 3, &at, PATIENT)]);
    assert!(
        sizes.iter().all(|error| error.contains("rank 1 has a world size of 3, but rank 0 has 2")),
        "{sizes:?}"
    );

    let at = listener();
    let transports = failures(vec![
        joining(Kind::SharedMemory, 0, 2, &at, PATIENT),
        joining(Kind::Tcp, 1, 2, &at, PATIENT),
    ]);
    assert!(transports.iter().all(|error| error.contains("ranks 0 and 1 have different transports")));

    let at = listener();
    let hosts = failures(
        (0..2)
            .map(|rank| Join {
                host: Some(format!("host {rank}")),
                ..joining(Kind::SharedMemory, rank, 2, &at, PATIENT)
            })
            .collect(),
    );
    assert!(hosts.iter().all(|error| error.contains("ranks 0 and 1 cannot share memory")), "{hosts:?}");
}

#[test]
fn values_that_cannot_be() {
    let at = listener();
    let base = |rank| joining(Kind::Tcp, rank, 2, &at, SHORT);
    let cases = [
        (Join { world_size: 0, ..base(0) }, "world_size = 0"),
        (Join { world_size: 1 << 40, ..base(0) }, "world_size"),
        (Join { rank: 2, listener: None, ..base(1) }, "rank = 2: a number below the world size of 2"),
        (Join { endpoint: "nowhere".into(), ..base(1) }, "endpoint = \"nowhere\": host:port"),
        (Join { endpoint: ":1".into(), ..base(1) }, "endpoint"),
        (Join { token: AuthToken::new(""), ..base(1) }, "token"),
        (Join { listener: Some(listener()), ..base(1) }, "listener"),
    ];
    for (refused, words) in cases {
        let error = join(refused).err().unwrap();
        assert!(matches!(error, Error::Option { .. }) && error.to_string().contains(words), "{error}");
    }
}

#[test]
fn a_wrong_token_is_refused_and_does_not_disturb_the_others() {
    let at = listener();
    let uninvited = Join { token: AuthToken::new("a guess"), ..joining(Kind::Tcp, 1, 2, &at, PATIENT) };
    std::thread::scope(|scope| {
        let rank_0 = scope.spawn(|| join(joining(Kind::Tcp, 0, 2, &at, PATIENT)));
        let error = join(uninvited).err().unwrap();
        assert!(matches!(&error, Error::Refused { rank: 1, .. }), "{error}");
        assert!(!error.to_string().contains("a guess"));
        let rank_1 = join(joining(Kind::Tcp, 1, 2, &at, PATIENT)).unwrap();
        let rank_1 = scope.spawn(|| rank_1.shutdown());
        rank_0.join().unwrap().unwrap().shutdown().unwrap();
        rank_1.join().unwrap().unwrap();
    });
}

#[test]
fn garbage_and_silence_do_not_disturb_the_rendezvous() {
    let at = listener();
    let address = at.local_addr().unwrap();
    std::thread::scope(|scope| {
        let rank_0 = scope.spawn(|| join(joining(Kind::Mixed, 0, 2, &at, PATIENT)));
        for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 3000], b"BRIGADE2", &[0; 100]] {
            let mut stream = TcpStream::connect(address).unwrap();
            let _ = stream.write_all(garbage);
        }
        // The right word and a wrong proof: nothing but the word and a refusal comes back.
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(&[&b"BRIGADE2"[..], &[7; 48]].concat()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert_eq!((answer.len(), answer[8]), (9, 0));
        // More than are listened to at once: a rank comes through when they have been silent for too long.
        let silent: Vec<_> = (0..1000).map(|_| TcpStream::connect(address).unwrap()).collect();
        let start = Instant::now();
        let rank_1 = join(joining(Kind::Mixed, 1, 2, &at, PATIENT)).unwrap();
        assert!(start.elapsed() < SOON, "took {:?}", start.elapsed());
        let rank_1 = scope.spawn(|| rank_1.shutdown());
        rank_0.join().unwrap().unwrap().shutdown().unwrap();
        rank_1.join().unwrap().unwrap();
        drop(silent);
    });
}

#[test]
fn a_late_rank_is_refused_by_a_complete_world() {
    let at = listener();
    let worlds = join_all((0..2).map(|rank| joining(Kind::Tcp, rank, 2, &at, PATIENT)).collect());
    let error = join(joining(Kind::Tcp, 1, 2, &at, PATIENT)).err().unwrap();
    assert!(error.to_string().contains("already complete"), "{error}");
    std::thread::scope(|scope| {
        for world in worlds {
            scope.spawn(|| world.unwrap().shutdown().unwrap());
        }
    });
}

#[test]
fn a_straggler_of_an_earlier_start_is_refused_and_does_not_disturb() {
    let at = listener();
    let rank = |rank, restart| Join { restart, ..joining(Kind::Mixed, rank, 3, &at, PATIENT) };
    std::thread::scope(|scope| {
        let rank_0 = scope.spawn(|| join(rank(0, 2)));
        for straggler in [rank(1, 1), rank(2, 0), rank(1, 1)] {
            let restart = straggler.restart;
            let number = straggler.rank;
            let error = join(straggler).err().unwrap();
            let words =
                format!("rank {number} belongs to restart {restart} of the world, but rank 0 to restart 2");
            assert!(matches!(error, Error::Refused { .. }) && error.to_string().contains(&words), "{error}");
        }
        let others = [1, 2].map(|number| scope.spawn(move || join(rank(number, 2))));
        let mut worlds = vec![rank_0.join().unwrap().unwrap()];
        worlds.extend(others.map(|other| other.join().unwrap().unwrap()));
        assert_eq!(worlds[1].group().flight_recorder().record().restart, 2);
        worlds.into_iter().for_each(|world| {
            scope.spawn(|| world.shutdown().unwrap());
        });
    });
}

#[test]
fn a_rank_0_of_an_earlier_start_makes_way() {
    let at = listener();
    let rank = |rank, restart| Join { restart, ..joining(Kind::Tcp, rank, 2, &at, PATIENT) };
    std::thread::scope(|scope| {
        let straggler = scope.spawn(|| join(rank(0, 0)));
        let rank_1 = scope.spawn(|| join(rank(1, 1)));
        let error = straggler.join().unwrap().err().unwrap();
        let words = "rank 1 belongs to restart 1 of the world, but rank 0 to restart 0";
        assert!(matches!(error, Error::Rendezvous { .. }) && error.to_string().contains(words), "{error}");
        let rank_0 = join(rank(0, 1)).unwrap();
        let rank_1 = rank_1.join().unwrap().unwrap();
        scope.spawn(|| rank_1.shutdown().unwrap());
        rank_0.shutdown().unwrap();
    });
}

#[test]
fn another_service_at_the_endpoint() {
    let service = listener();
    let address = service.local_addr().unwrap();
    let serving = std::thread::spawn(move || {
        let (mut stream, _) = service.accept().unwrap();
        stream.write_all(b"220 mail.example.org ESMTP ready, how are you today?\r\n").unwrap();
    });
    let rank = Join {
        endpoint: address.to_string(),
        transport: Transport::Auto,
        ..joining(Kind::Tcp, 1, 2, &listener(), PATIENT)
    };
    let error = join(rank).err().unwrap();
    assert!(error.to_string().contains("not a rank of Brigade"), "{error}");
    serving.join().unwrap();
}

#[test]
fn shutdown_names_who_does_not_come() {
    let at = listener();
    let timeouts = Timeouts { step: Duration::from_millis(800), ..PATIENT };
    let mut worlds = join_all((0..2).map(|rank| joining(Kind::Tcp, rank, 2, &at, timeouts)).collect());
    let rank_1 = worlds.remove(1).unwrap();
    let error = worlds.remove(0).unwrap().shutdown().unwrap_err();
    assert!(error.to_string().contains("ranks [1] did not arrive"), "{error}");
    assert!(rank_1.shutdown().is_err());
}

#[test]
fn a_dropped_world_is_a_failed_rank() {
    let at = listener();
    let mut worlds = join_all((0..3).map(|rank| joining(Kind::Mixed, rank, 3, &at, PATIENT)).collect());
    drop(worlds.remove(2));
    for world in worlds {
        let error = world.unwrap().group().barrier().unwrap_err();
        assert!(error.to_string().contains("rank 2") && error.to_string().contains("dropped"), "{error}");
    }
}

#[test]
fn the_token_does_not_show() {
    let token = AuthToken::random().unwrap();
    assert_eq!(token.expose().len(), 64);
    assert_ne!(token, AuthToken::random().unwrap());
    assert!(!format!("{token:?}").contains(token.expose()));
}
