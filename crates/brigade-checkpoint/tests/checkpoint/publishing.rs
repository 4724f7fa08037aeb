//! What is not a checkpoint is not published.

use brigade_checkpoint::{
    Error, MANIFEST, PARAMETERS, ParameterMetadata, RankShard, Result, Scalar, StagingDir, Storage,
    TrainState, UnitMetadata, WriteItem, WriteResult, list, publish, write_shard,
};

use crate::sample::Sample;
use crate::storages::{Behaviour, Custom, kinds};

fn item(start: usize, elements: usize) -> WriteItem {
    WriteItem { unit: "block.0".into(), slot: PARAMETERS.into(), start, values: vec![1.0; elements] }
}

/// A unit of 10 elements with its parameters alone.
fn state() -> TrainState {
    let mut state = Sample::new(&[10], 1).state;
    state.units[0].slots = vec![PARAMETERS.into()];
    state
}

fn attempt(storage: &dyn Storage, ranks: &[&[WriteItem]], state: TrainState) -> Result<()> {
    let staging = StagingDir::new(1)?;
    let entries: Result<Vec<WriteResult>> = ranks
        .iter()
        .enumerate()
        .map(|(rank, items)| write_shard(storage, &staging, rank, &RankShard { items: items.to_vec() }))
        .collect();
    publish(storage, &staging, state, entries?).map(|_| ())
}

fn refused(ranks: &[&[WriteItem]], state: TrainState) -> String {
    let (_, storage, _folder) = kinds().swap_remove(0);
    let error = attempt(&*storage, ranks, state).unwrap_err();
    assert!(list(&*storage).unwrap().is_empty() && storage.unpublished().unwrap().is_empty());
    error.to_string()
}

/// A store that takes the manifest, and whose answer is lost.
#[derive(Debug)]
struct LosesAnswers;

impl Behaviour for LosesAnswers {
    fn after_finish(&self, name: &str) -> Result<()> {
        match name {
            MANIFEST => Err(Error::Io {
                operation: "reach",
                path: name.into(),
                source: std::io::Error::other("no answer"),
            }),
            _ => Ok(()),
        }
    }
}

#[test]
fn what_a_store_has_taken_is_published_whatever_it_says() {
    for (kind, storage, _folder) in kinds() {
        let loses = Custom::new(storage.clone(), LosesAnswers);
        let published = attempt(&loses, &[&[item(0, 10)]], state());
        // In a folder, the manifest alone makes nothing visible.
        assert_eq!(published.is_ok(), kind != "local", "{kind}");
        assert_eq!(list(&*storage).unwrap().len(), usize::from(kind != "local"), "{kind}");
        assert!(storage.unpublished().unwrap().is_empty(), "{kind}");
    }
}

#[test]
fn gaps_and_overlaps() {
    let cases: [(&[&[WriteItem]], &str); 8] = [
        (&[], "block.0/parameters: elements 0..10 are in no rank's shard (the slot has 10)"),
        (&[&[]], "elements 0..10 are in no rank's shard"),
        (&[&[item(0, 4)], &[item(4, 5)]], "elements 9..10 are in no rank's shard"),
        (&[&[item(0, 4)], &[item(5, 5)]], "elements 4..5 are in no rank's shard"),
        (&[&[item(0, 6)], &[item(4, 6)]], "elements 4..6 are written twice"),
        (&[&[item(0, 10)], &[item(0, 10)]], "elements 0..10 are written twice"),
        (&[&[item(0, 11)]], "elements 10..11 are past the slot's end"),
        (&[&[item(0, 6), item(5, 5)]], "elements 5..6 are written twice by one rank"),
    ];
    for (ranks, expected) in cases {
        let message = refused(ranks, state());
        assert!(message.contains(expected), "{message}");
    }
    let (_, storage, _folder) = kinds().swap_remove(0);
    attempt(&*storage, &[&[item(4, 6), item(3, 0)], &[], &[item(0, 4)]], state()).unwrap();
}

#[test]
fn units_that_contradict_themselves() {
    let all: &[&[WriteItem]] = &[&[item(0, 10)]];
    let changed = |change: fn(&mut UnitMetadata)| {
        let mut state = state();
        change(&mut state.units[0]);
        refused(all, state)
    };
    let message = changed(|unit| unit.parameters[0].shape = vec![4, 2]);
    assert!(message.contains("\"block.0.bias\"") && message.contains("overlaps another"), "{message}");
    let message = changed(|unit| unit.parameters[1].shape = vec![usize::MAX, 2]);
    assert!(message.contains("leaves unit \"block.0\""), "{message}");
    let message = changed(|unit| unit.parameters[1].name = "block.0.weight".into());
    assert!(message.contains("\"block.0.weight\" appears twice"), "{message}");
    let message = changed(|unit| unit.slots.push(PARAMETERS.into()));
    assert!(message.contains("appears twice"), "{message}");
    let message = changed(|unit| unit.slots.push("a/b".into()));
    assert!(message.contains("slot \"a/b\" is not allowed"), "{message}");
    let message = changed(|unit| unit.name = "other".into());
    assert!(message.contains("holds block.0/parameters, which no unit has"), "{message}");
    let message = changed(|unit| unit.elements = usize::MAX);
    assert!(message.contains("too many elements"), "{message}");
    let mut twice = state();
    twice.units.push(UnitMetadata { parameters: vec![], ..twice.units[0].clone() });
    assert!(refused(all, twice).contains("unit \"block.0\" appears twice"));
}

#[test]
fn padding_and_scalars_are_kept() {
    let (_, storage, _folder) = kinds().swap_remove(0);
    let mut state = state();
    let unit = &mut state.units[0];
    unit.parameters = vec![ParameterMetadata { name: "scale".into(), shape: vec![], start: 5 }];
    unit.scalars.insert("loss scale".into(), Scalar::Float(f64::NEG_INFINITY));
    unit.scalars.insert("count".into(), Scalar::Int(i64::MIN));
    attempt(&*storage, &[&[item(0, 10)]], state.clone()).unwrap();
    let checkpoint = brigade_checkpoint::Checkpoint::open(storage, 1).unwrap();
    assert_eq!(checkpoint.manifest().state, state);
    assert_eq!(checkpoint.parameters().next().unwrap().read().unwrap(), [1.0]);
}

#[test]
fn names_that_cannot_be_stored() {
    for (unit, slot) in [("", "a"), ("a\n", "a"), ("a", ""), ("a", "b/c")] {
        let shard =
            RankShard { items: vec![WriteItem { unit: unit.into(), slot: slot.into(), ..item(0, 1) }] };
        let (_, storage, _folder) = kinds().swap_remove(0);
        let error = write_shard(&*storage, &StagingDir::new(1).unwrap(), 0, &shard).unwrap_err();
        assert!(matches!(error, Error::InvalidName { .. }), "{error}");
    }
}

#[test]
fn entries_that_do_not_belong_together() {
    let sample = Sample::new(&[10], 1);
    for (kind, storage, _folder) in kinds() {
        let first = StagingDir::with_id(1, "first").unwrap();
        let stale = sample.write(&*storage, &first, 2).unwrap();
        publish(&*storage, &first, sample.state.clone(), stale.clone()).unwrap();

        let second = StagingDir::with_id(2, "second").unwrap();
        let write = || sample.write(&*storage, &second, 2).unwrap();
        let publish = |entries| publish(&*storage, &second, sample.state.clone(), entries).unwrap_err();

        let fresh = write();
        let error = publish(vec![fresh[0].clone(), stale[1].clone()]);
        let expected = "rank 1 reported a file of the save of step 1 (first), \
                        but the save of step 2 (second) is being published";
        assert_eq!(error.to_string(), expected, "{kind}");
        let fresh = write();
        assert!(matches!(
            publish(vec![fresh[0].clone(), fresh[0].clone()]),
            Error::DuplicateRank { rank: 0 }
        ));
        let mut fresh = write();
        fresh[1].file.rank = 2;
        let error = publish(fresh).to_string();
        assert!(error.contains("all nodes must see the same folder") && error.contains("rank 2"), "{error}");
        let mut fresh = write();
        fresh[1].file.bytes += 4;
        assert!(matches!(publish(fresh), Error::SizeMismatch { .. }));
        let mut fresh = write();
        fresh[1].file.name = "../x".into();
        assert!(publish(fresh).to_string().contains("\"../x\", not \"rank-00001.safetensors\""));
        // What a rank reports travels as JSON.
        let entry: WriteResult = serde_json::from_str(&serde_json::to_string(&stale[0]).unwrap()).unwrap();
        assert_eq!(entry, stale[0]);
        assert!(list(&*storage).unwrap().iter().map(|found| found.step).eq([1]));
    }
}
