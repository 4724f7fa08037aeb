//! One place, several that want it: one has it at a time, and one that is silent loses it.

#![allow(clippy::unwrap_used, reason = "a test may fail by a panic")]

use std::sync::Barrier;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use brigade_checkpoint::{
    Error, Holder, LeaseLocation, LeaseRecord, Result, lease_location, look_at_lease, take_lease,
};

/// How long a lease lasts here.
const SHORT: Duration = Duration::from_secs(2);

fn holder(pid: u32) -> Holder {
    let lock = String::new();
    Holder { host: "node-7".into(), pid, folder: "/runs/a".into(), since: 1_780_000_000, lock }
}

/// A lease as a process leaves it that was killed just now.
fn dead(place: &dyn LeaseLocation, lock: &str) {
    let record = LeaseRecord {
        holder: Holder { lock: lock.into(), ..holder(1) },
        seconds: SHORT.as_secs_f64(),
        id: "1".into(),
        renewed: 3,
        ended: None,
        status: serde_json::Value::Null,
    };
    assert!(place.create("00000007.json", &serde_json::to_vec(&record).unwrap()).unwrap());
}

/// A fresh place of each kind.
fn places(folder: &tempfile::TempDir) -> Vec<String> {
    let path = folder.path().display();
    let mut places = vec![format!("{path}/folder")];
    if cfg!(feature = "object-store") {
        places.push(format!("file://{path}/store"));
    }
    places
}

fn take(place: &str, me: &Holder, said: &mut Vec<String>) -> Result<brigade_checkpoint::Lease> {
    take_lease(lease_location(place)?, me, SHORT, &mut |text| said.push(text.to_owned()), &|| Ok(()))
}

#[test]
fn a_holder_that_lives_is_named_to_all_others_until_it_gives_the_place_back() {
    let folder = tempfile::tempdir().unwrap();
    places(&folder).iter().for_each(|place| a_holder_that_lives(place));
}

fn a_holder_that_lives(place: &str) {
    let mut said = Vec::new();
    let first = take(place, &holder(1), &mut said).unwrap();
    assert!(said.is_empty(), "{said:?}");
    first.watch(|| serde_json::json!({ "step": 7 }), |_| {}, |_| {});
    // Longer than it lasts without a renewal.
    thread::sleep(SHORT + Duration::from_secs(2));
    let begin = Instant::now();
    let error = take(place, &holder(2), &mut said).err().unwrap().to_string();
    assert!(begin.elapsed() < SHORT, "{:?}", begin.elapsed());
    let who = "process 1 on host node-7 (folder /runs/a) since 2026-05-28 20:26:40 UTC";
    assert!(error.contains(place) && error.contains(who), "{error}");
    assert!(said[0].contains(who) && said[0].contains("waiting up to"), "{said:?}");
    let found = look_at_lease(&*lease_location(place).unwrap()).unwrap().unwrap();
    assert!(found.is_held() && found.record.status["step"] == 7, "{found:?}");
    first.release("finished").unwrap();
    let found = look_at_lease(&*lease_location(place).unwrap()).unwrap().unwrap();
    assert!(!found.is_held() && found.record.ended.as_deref() == Some("finished"), "{found:?}");
    said.clear();
    drop(take(place, &holder(2), &mut said).unwrap());
    drop(take(place, &holder(3), &mut said).unwrap());
    assert!(said.is_empty(), "{said:?}");
    let names = lease_location(place).unwrap().names().unwrap();
    assert_eq!(names, ["00000003.json"], "nothing else is left");
}

#[test]
fn nothing_stays_of_a_writer_that_was_killed() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().display().to_string();
    let location = lease_location(&place).unwrap();
    dead(&*location, "lock");
    location.create("00000007.json.partial", b"{").unwrap();
    let lease = take(&place, &Holder { lock: "lock".into(), ..holder(2) }, &mut Vec::new()).unwrap();
    assert_eq!(location.names().unwrap(), ["00000008.json"]);
    drop(lease);
}

#[test]
fn a_silent_holder_is_replaced_by_exactly_one_and_not_before_its_time() {
    let folder = tempfile::tempdir().unwrap();
    places(&folder).iter().for_each(|place| a_silent_holder(place));
}

fn a_silent_holder(place: &str) {
    dead(&*lease_location(place).unwrap(), "");
    let (begin, barrier) = (Instant::now(), Barrier::new(4));
    let taken = thread::scope(|scope| {
        let race = |pid| {
            let barrier = &barrier;
            scope.spawn(move || {
                barrier.wait();
                let taken = take(place, &holder(pid), &mut Vec::new());
                let waited = begin.elapsed();
                // All others have met it before it gives the place back.
                taken.map(|lease| {
                    thread::sleep(3 * SHORT);
                    drop(lease);
                    waited
                })
            })
        };
        let threads: Vec<_> = (2..6).map(race).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    let won: Vec<&Duration> = taken.iter().filter_map(|taken| taken.as_ref().ok()).collect();
    assert_eq!(won.len(), 1, "{taken:?}");
    assert!(*won[0] >= SHORT, "{won:?}");
    let lost = taken.iter().filter_map(|taken| taken.as_ref().err());
    assert!(lost.clone().all(|error| matches!(error, Error::Held { .. })), "{taken:?}");
}

#[test]
fn whoever_has_the_lock_of_a_holder_before_it_does_not_wait() {
    let folder = tempfile::tempdir().unwrap();
    places(&folder).iter().for_each(|place| the_lock_of_a_holder(place));
}

fn the_lock_of_a_holder(place: &str) {
    dead(&*lease_location(place).unwrap(), "boot:1:2");
    let (mut said, me) = (Vec::new(), Holder { lock: "boot:1:2".into(), ..holder(2) });
    drop(take(place, &me, &mut said).unwrap());
    assert!(said.is_empty(), "{said:?}");
}

/// A holder may only be suspended.
#[test]
fn a_silent_holder_keeps_a_place_that_would_be_of_no_use_to_others() {
    let folder = tempfile::tempdir().unwrap();
    for place in places(&folder) {
        dead(&*lease_location(&place).unwrap(), "");
        let refused = take_lease(lease_location(&place).unwrap(), &holder(2), SHORT, &mut |_| {}, &|| {
            Err("full".into())
        });
        assert_eq!(refused.err().unwrap().to_string(), "full");
        assert_eq!(look_at_lease(&*lease_location(&place).unwrap()).unwrap().unwrap().record.holder.pid, 1);
        drop(take(&place, &holder(2), &mut Vec::new()).unwrap());
    }
}

#[test]
fn a_holder_that_was_replaced_is_told_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    places(&folder).iter().for_each(|place| a_replaced_holder(place));
}

fn a_replaced_holder(place: &str) {
    let lease = take(place, &holder(1), &mut Vec::new()).unwrap();
    let (lost, told) = channel();
    lease.watch(|| serde_json::Value::Null, move |text| lost.send(text.to_owned()).unwrap(), |_| {});
    dead(&*lease_location(place).unwrap(), "");
    let text = told.recv_timeout(Duration::from_secs(30)).unwrap();
    assert!(text.contains(place) && text.contains("was taken over by process 1 on host node-7"), "{text}");
    lease.release("finished").unwrap();
    let found = look_at_lease(&*lease_location(place).unwrap()).unwrap().unwrap();
    assert_eq!(found.record.ended, None);
}

#[test]
fn a_lease_that_is_not_whole_is_waited_for_like_any_other() {
    let folder = tempfile::tempdir().unwrap();
    let place = &places(&folder)[0];
    lease_location(place).unwrap().create("00000001.json", b"{\"holder\":").unwrap();
    let (begin, mut said) = (Instant::now(), Vec::new());
    drop(take(place, &holder(2), &mut said).unwrap());
    assert!(begin.elapsed() >= SHORT && said[0].contains("an unknown process"), "{said:?}");
}

#[cfg(feature = "object-store")]
mod real_stores {
    use brigade_testing::{ABSENT, BUCKET, FORBIDDEN, Fault, Protocol, READ_ONLY, StoreServer};

    use super::*;

    fn server(protocol: Protocol) -> StoreServer {
        let server = StoreServer::start(protocol, &[]);
        // SAFETY: this test is the only one of its process, and no client is there yet.
        unsafe { server.enter() };
        server
    }

    /// The four tests at once, on a store that is healthy, and on one that fails in all ways in turn: for less time than a lease lasts.
    fn leases(protocol: Protocol) {
        let server = server(protocol);
        const FAULTS: [Fault; 3] = [Fault::Status(503), Fault::LostRequest, Fault::LostAnswer];
        let mut places = 0;
        for faults in [&[][..], &FAULTS] {
            server.proxy().plan(move |request| match (request.number % 4, faults.len()) {
                (3, 1..) => faults[request.number / 4 % faults.len()],
                _ => Fault::None,
            });
            thread::scope(|scope| {
                for test in [a_holder_that_lives, a_silent_holder, the_lock_of_a_holder, a_replaced_holder]
                    as [fn(&str); 4]
                {
                    places += 1;
                    let place = server.url(BUCKET, &format!("run-{places}"));
                    scope.spawn(move || test(&place));
                }
            });
        }
    }

    #[test]
    #[ignore = "needs the servers of `cargo xtask test-stores`"]
    fn a_place_in_a_real_s3_has_one_holder_whatever_becomes_of_requests() {
        leases(Protocol::S3);
    }

    #[test]
    #[ignore = "needs the servers of `cargo xtask test-stores`"]
    fn a_place_in_a_real_gcs_has_one_holder_whatever_becomes_of_requests() {
        leases(Protocol::Gcs);
    }

    #[test]
    #[ignore = "needs the servers of `cargo xtask test-stores`"]
    fn a_lease_in_a_real_store_is_its_creators_also_if_no_answer_came() {
        for server in Protocol::ALL.map(server) {
            let place = lease_location(&server.url(BUCKET, "run")).unwrap();
            for (number, fault) in [Fault::LostAnswer, Fault::LostRequest].into_iter().enumerate() {
                let (name, mut is_first) = (format!("0000000{number}.json"), true);
                server.proxy().plan(move |request| {
                    let is_conditional = ["if-none-match", "x-goog-if-generation-match"]
                        .iter()
                        .any(|name| request.header(name).is_some());
                    if is_conditional && std::mem::take(&mut is_first) { fault } else { Fault::None }
                });
                assert!(place.create(&name, b"mine").unwrap(), "{fault:?}");
                assert!(!place.create(&name, b"another's").unwrap(), "{fault:?}");
                assert_eq!(place.read(&name).unwrap().unwrap().0, b"mine");
            }
        }
    }

    #[test]
    #[ignore = "needs the servers of `cargo xtask test-stores`"]
    fn a_real_bucket_that_may_not_be_written_is_refused_at_once_and_in_one_line() {
        let server = server(Protocol::S3);
        for (bucket, said) in [
            (FORBIDDEN, "do not allow this"),
            (READ_ONLY, "do not allow this"),
            (ABSENT, "the bucket does not exist"),
        ] {
            let begin = Instant::now();
            let place = server.url(bucket, "run");
            let error = take(&place, &holder(1), &mut Vec::new()).err().unwrap().to_string();
            assert!(error.contains(said) && error.contains(&place), "{error}");
            assert!(!error.contains(['\n', '<']), "{error}");
            assert!(server.secrets().iter().all(|secret| !error.contains(secret)), "{error}");
            assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
        }
    }
}

/// A place that replaces what is there, as stores do that ignore the condition.
struct Unconditional(Box<dyn LeaseLocation>);

impl LeaseLocation for Unconditional {
    fn text(&self) -> String {
        self.0.text()
    }
    fn names(&self) -> Result<Vec<String>> {
        self.0.names()
    }
    fn create(&self, name: &str, content: &[u8]) -> Result<bool> {
        // Folders are made with the first file.
        self.0.create("folder", b"")?;
        self.0.write(name, content).map(|()| true)
    }
    fn write(&self, name: &str, content: &[u8]) -> Result<()> {
        self.0.write(name, content)
    }
    fn read(&self, name: &str) -> Result<Option<(Vec<u8>, Duration)>> {
        self.0.read(name)
    }
    fn remove(&self, name: &str) -> Result<()> {
        self.0.remove(name)
    }
}

#[test]
fn a_place_without_conditional_writes_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let place = || lease_location(&folder.path().to_string_lossy()).unwrap();
    let taken = take_lease(Box::new(Unconditional(place())), &holder(1), SHORT, &mut |_| {}, &|| Ok(()));
    let said = taken.err().unwrap().to_string();
    assert!(said.contains("If-None-Match") && said.contains("conditional writes"), "{said}");
    // Nothing is left that another one would wait for.
    assert_eq!(look_at_lease(&*place()).unwrap(), None);
}

#[test]
fn a_holder_whose_record_is_replaced_has_lost_the_place() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().to_string_lossy().into_owned();
    let held = take(&place, &holder(1), &mut Vec::new()).unwrap();
    let (lost, told) = channel();
    held.watch(|| serde_json::Value::Null, move |text| drop(lost.send(text.to_owned())), |_| {});
    let location = lease_location(&place).unwrap();
    let record = look_at_lease(&*location).unwrap().unwrap().record;
    let other = LeaseRecord { holder: holder(2), id: "another".into(), ..record };
    let name = location.names().unwrap().into_iter().find(|name| name.ends_with(".json")).unwrap();
    location.write(&name, &serde_json::to_vec(&other).unwrap()).unwrap();
    let said = told.recv_timeout(10 * SHORT).unwrap();
    assert!(said.contains("was taken over by process 2"), "{said}");
    drop(held);
    assert_eq!(look_at_lease(&*location).unwrap().unwrap().record, other, "it is left alone");
}
