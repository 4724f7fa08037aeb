//! Parameters that ranks gather as codes: every mesh and stage of ZeRO has the bits of one process, which computes with what the codes of its
//! masters stand for.

use std::collections::BTreeMap;

use brigade::core::compress::{Codec, GatherCodes};
use brigade::core::{Groups, ReshardAfterForward, Zero};

use crate::footprint::is_as_planned;
use crate::mesh::{equals, on_mesh, same_bits};
use crate::resume::{Saved, every_row_goes_on_from_every_row, snapshot};
use crate::row::{MIXED, Outcome, Row};

const CODES: [GatherCodes; 2] = [GatherCodes::Int8, GatherCodes::Int4];

fn zero(stage: u8, gather_codes: GatherCodes) -> Zero {
    Zero { stage, gather_codes, ..Zero::default() }
}

/// Meshes with every stage of ZeRO, and the micro-batches of a step divided among their ranks.
fn rows(base: &Row, codes: GatherCodes) -> Vec<Row> {
    let meshes = [(1, 1, 3), (1, 2, 1), (1, 2, 2), (1, 4, 3), (2, 2, 3), (2, 2, 1), (3, 1, 2)];
    let row =
        |(pp, dp, stage)| Row { pp, dp, micro_batches: 4 / dp, zero: zero(stage, codes), ..base.clone() };
    let mut rows: Vec<Row> = meshes.into_iter().map(row).collect();
    let always = Zero { reshard_after_forward: ReshardAfterForward::Always, ..zero(3, codes) };
    rows.push(Row { zero: always, ..row((2, 2, 3)) });
    rows.push(Row { replicate: 2, ..row((1, 2, 3)) });
    rows.last_mut().unwrap().micro_batches = 1;
    rows
}

/// One process.
fn alone(row: &Row, codes: GatherCodes) -> Outcome {
    Row { zero: zero(1, codes), ..row.reference() }.run(Groups::single_rank())
}

#[test]
fn every_mesh_and_stage_equals_one_process() {
    for codes in CODES {
        let base = Row { masked: true, clipping: Some(0.3), ..Row::default() };
        let mixed = Row { tied: true, precision: MIXED, dropout: 0.1, ..base.clone() };
        let offloaded = Row { tied: true, offload: true, optimizer: "sgd", ..base.clone() };
        for base in [base, mixed, offloaded] {
            for row in rows(&base, codes) {
                let reference = alone(&row, codes);
                let outcomes = on_mesh(&row.mesh(), |groups| row.run(groups));
                for (rank, outcome) in outcomes.iter().enumerate() {
                    equals(&row, rank, outcome, &reference);
                }
                same_bits(&outcomes[0].gradients, &reference.gradients, &format!("gradients of {row:?}"));
            }
        }
    }
}

/// The gradients are those at the values that the codes stand for; what is saved and collected are the masters.
#[test]
fn gradients_are_those_of_what_codes_stand_for() {
    for codes in CODES {
        let plain = Row::default();
        let coded = Row { zero: zero(1, codes), ..plain.clone() };
        let [mut plain_engine, mut coded_engine] =
            [&plain, &coded].map(|row| row.engine(Groups::single_rank()).unwrap());
        let masters = Saved::of(vec![snapshot(&coded_engine)]);
        assert!(masters.parameters() == Saved::of(vec![snapshot(&plain_engine)]).parameters());
        same_bits(&coded_engine.tensors(0).unwrap(), &plain_engine.tensors(0).unwrap(), "masters");
        let stand_for: BTreeMap<_, _> = masters
            .parameters()
            .into_iter()
            .map(|(unit, values)| (unit, round_trip(codes, &values)))
            .collect();
        assert!(stand_for != masters.parameters());
        plain_engine.restore(0, &mut &masters.with_parameters(&stand_for)).unwrap();
        let batches = || plain.batches(0, &Groups::single_rank());
        let (loss, gradients) = plain_engine.gradients(&batches(), 0).unwrap();
        let (coded_loss, coded_gradients) = coded_engine.gradients(&batches(), 0).unwrap();
        assert_eq!(loss.to_bits(), coded_loss.to_bits());
        same_bits(&coded_gradients, &gradients, "gradients");
    }
}

/// What each block's code stands for, block by block.
fn round_trip(codes: GatherCodes, values: &[f32]) -> Vec<f32> {
    let codec = codes.codec().unwrap();
    let block = |block: &[f32]| {
        let mut padded = block.to_vec();
        padded.resize(256, 0.0);
        let mut code = vec![0; codec.bytes(256)];
        codec.encode(&padded, 0, &mut code);
        codec.decode(&code, 0, &mut padded);
        padded.truncate(block.len());
        padded
    };
    values.chunks(256).flat_map(block).collect()
}

#[test]
fn what_is_saved_are_masters() {
    let rows = rows(&Row { tied: true, ..Row::default() }, GatherCodes::Int8);
    every_row_goes_on_from_every_row(&rows[..5]);
}

#[test]
fn bytes_are_as_planned() {
    for codes in CODES {
        for tied in [false, true] {
            for row in rows(&Row { tied, ..Row::default() }, codes) {
                is_as_planned(&row);
                is_as_planned(&Row { precision: MIXED, ..row });
            }
        }
    }
}

/// Fewer bytes than in fp32, by as much as codes are smaller.
#[test]
fn fewer_bytes_are_gathered() {
    let gathered = |codes| {
        let row = Row { dp: 2, micro_batches: 2, zero: zero(3, codes), ..Row::default() };
        let outcomes = on_mesh(&row.mesh(), |groups| row.run(groups));
        outcomes[0].reports[0].traffic[&brigade::core::CollectiveKind::AllGather].1 as f64
    };
    let plain = gathered(GatherCodes::None);
    assert!(plain / gathered(GatherCodes::Int8) > 3.9 && plain / gathered(GatherCodes::Int4) > 7.7);
}
