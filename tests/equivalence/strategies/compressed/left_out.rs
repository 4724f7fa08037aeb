//! What codes left out of earlier sums: it is added to later ones, whatever mesh goes on.

use brigade::core::compress::{Compression, Method};
use brigade::core::{Error, NonFinite, Zero};

use super::{compressed, methods, once, zero};
use crate::mesh::on_mesh;
use crate::resume::{Saved, every_row_goes_on_from_every_row, snapshot, train};
use crate::row::Row;

/// The same mesh, or another one that sums the same, goes on with the same bits.
#[test]
fn what_was_left_out_is_taken_back() {
    for compression in methods() {
        let base = |dp: usize, zero: Zero| {
            compressed(compression, Row { dp, zero, micro_batches: 2, ..Row::default() })
        };
        let of_zero =
            [Row { pp: 2, ..base(2, zero(1)) }, base(2, once(2)), Row { pp: 2, ..base(2, once(3)) }];
        every_row_goes_on_from_every_row(&of_zero);
        let factors = compression.method == Method::PowerSgd;
        let plain = [base(3, zero(0)), Row { pp: 2, ..base(3, zero(0)) }];
        every_row_goes_on_from_every_row(&plain[..if factors { 2 } else { 1 }]);
        if !factors {
            let each = [base(2, zero(2)), Row { pp: 2, ..base(2, zero(3)) }];
            every_row_goes_on_from_every_row(&each);
            every_row_goes_on_from_every_row(&[Row { replicate: 2, ..base(2, zero(1)) }]);
        }
    }
}

/// The sums over all ranks of what was left out, by unit.
fn left_out(saved: &Saved) -> Vec<(String, Vec<f64>)> {
    let mut sums: Vec<(String, Vec<f64>)> = Vec::new();
    for (unit, slot, values) in saved.arrays().filter(|(_, slot, _)| slot.starts_with("reduction.error.")) {
        let values = values.iter().map(|value| f64::from(*value));
        match sums.iter_mut().find(|(of, _)| of == unit) {
            Some((_, sum)) => sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value),
            None => sums.push((unit.to_owned(), values.collect())),
        }
        assert!(!slot.is_empty());
    }
    sums
}

/// Another number of ranks divides what was left out; nothing of it is lost.
#[test]
fn another_mesh_takes_all_that_was_left_out() {
    let meshes = [
        (1, 2, zero(0)),
        (1, 4, zero(0)),
        (1, 4, once(3)),
        (2, 2, zero(1)),
        (1, 3, zero(0)),
        (1, 1, zero(0)),
    ];
    for method in [Method::TopK, Method::PowerSgd, Method::OneBit] {
        let compression = Compression { method, ratio: 0.1, rank: 1, ..Compression::default() };
        let row = |(pp, dp, zero)| {
            let micro_batches = if dp == 3 { 1 } else { 4 / dp };
            compressed(compression, Row { pp, dp, zero, micro_batches, ..Row::default() })
        };
        for from in meshes.into_iter().filter(|(_, dp, _)| *dp > 1).map(row) {
            let (_, saved) = train(&from, None, 0..2);
            let before = left_out(&saved);
            assert!(before.iter().any(|(_, sum)| sum.iter().any(|value| *value != 0.0)));
            for to in meshes.into_iter().map(row) {
                let what = format!("from {from:?} to {to:?}");
                let held = on_mesh(&to.mesh(), |groups| {
                    let mut engine = to.engine(groups.clone()).unwrap();
                    engine.restore(2, &mut &saved).unwrap();
                    let held = snapshot(&engine);
                    to.step(&mut engine, 2, &groups).unwrap();
                    held
                });
                let after = left_out(&Saved::of(held));
                assert_eq!(before.len(), after.len(), "{what}");
                for ((unit, before), (_, after)) in before.iter().zip(&after) {
                    let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-6 * a.abs().max(0.1);
                    assert!(before.iter().zip(after).all(near), "{unit} {what}");
                }
            }
        }
    }
}

/// Codes of any method take up what codes of another left out; plain training says that it does not.
#[test]
fn another_method_goes_on() {
    let row = |method| {
        let compression = Compression { method, ratio: 0.1, ..Compression::default() };
        compressed(compression, Row { dp: 2, micro_batches: 2, ..Row::default() })
    };
    let (_, saved) = train(&row(Method::TopK), None, 0..2);
    for method in [Method::Bf16, Method::PowerSgd, Method::OneBit, Method::Int8] {
        let held = on_mesh(&row(method).mesh(), |groups| {
            let mut engine = row(method).engine(groups.clone()).unwrap();
            engine.restore(2, &mut &saved).unwrap();
            let held = snapshot(&engine);
            row(method).step(&mut engine, 2, &groups).unwrap();
            let after = snapshot(&engine);
            (held, after)
        });
        let (held, after): (Vec<_>, Vec<_>) = held.into_iter().unzip();
        assert!(!left_out(&Saved::of(held)).is_empty(), "{method}");
        assert_eq!(left_out(&Saved::of(after)).is_empty(), method == Method::Bf16, "{method}");
    }
    let told = on_mesh(&row(Method::TopK).mesh(), |groups| {
        let mut engine = Row { dp: 2, ..Row::default() }.engine(groups).unwrap();
        engine.restore(2, &mut &saved).unwrap_err().to_string()
    });
    assert!(told[0].contains("comm.compress") && told[0].contains("--compress bf16"), "{}", told[0]);
}

#[test]
fn what_is_not_finite_ends_the_step_and_a_skipped_step_leaves_nothing_out() {
    for compression in methods() {
        for zero in [zero(0), once(2)] {
            let row = compressed(
                compression,
                Row { dp: 2, micro_batches: 2, masked: true, zero, ..Row::default() },
            );
            on_mesh(&row.mesh(), |groups| {
                let poisoned = |step| {
                    let mut batches = row.batches(step, &groups);
                    if groups.world().rank() == 1 {
                        let target = &mut batches[1].target;
                        target.mask = target.mask.take().map(|mask| mask * f32::INFINITY);
                    }
                    batches
                };
                let mut stopping = row.engine(groups.clone()).unwrap();
                row.step(&mut stopping, 0, &groups);
                let told = stopping.step(poisoned(1), 1e-2).unwrap_err();
                assert!(matches!(told, Error::NonFinite { .. }), "{told}");
                assert!(told.to_string().contains("is not finite"), "{told}");

                let skips = Row { on_nonfinite: NonFinite::Skip, ..row.clone() };
                let [mut skipping, mut plain] = [0; 2].map(|_| skips.engine(groups.clone()).unwrap());
                skips.step(&mut skipping, 0, &groups);
                skips.step(&mut plain, 0, &groups);
                let before = snapshot(&skipping);
                assert!(skipping.step(poisoned(1), 1e-2).unwrap().skipped);
                assert!(snapshot(&skipping) == before, "{compression:?}");
            });
        }
    }
}
