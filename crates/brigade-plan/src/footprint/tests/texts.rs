//! The texts about a footprint, and about a configuration that has none.

use super::{blocks, tied};
use crate::footprint::{Configuration, Footprint, FootprintError, UnitSize};

#[test]
fn a_configuration_that_cannot_be_is_refused() {
    let text = |change: &dyn Fn(&mut Configuration)| {
        let mut configuration = tied();
        change(&mut configuration);
        Footprint::of(&configuration).unwrap_err().to_string()
    };
    insta::assert_snapshot!(text(&|c| c.zero_stage = 4), @"zero.stage (--zero) = 4 is not possible: 0 shards nothing, 1 the optimizer's state, 2 gradients too, 3 parameters too");
    insta::assert_snapshot!(text(&|c| c.dp = 0), @"mesh.dp (--dp) = 0 is not possible: at least 1 is needed");
    insta::assert_snapshot!(text(&|c| c.compute_bytes = 3), @"bytes of compute.dtype = 3 is not possible: it must be 2 or 4");
    insta::assert_snapshot!(text(&|c| c.prefetch = usize::MAX), @"zero.prefetch = 18446744073709551615 is not possible: it must be at most 1000 blocks");
    insta::assert_snapshot!(text(&|c| c.boundary_activations.truncate(2)), @"number of boundary activations = 2 is not possible: the model has 6 blocks; each needs its tensors, or none of them");
    insta::assert_snapshot!(text(&|c| c.units[1].users = vec![5, 0]), @"users of unit 1 = [5, 0] is not possible: they must be in order, from 6 blocks, and begin with the owner, 0");
    insta::assert_snapshot!(text(&|c| c.units[1].users = vec![0, 6]), @"users of unit 1 = [0, 6] is not possible: they must be in order, from 6 blocks, and begin with the owner, 0");
    insta::assert_snapshot!(text(&|c| c.units[1].users = vec![5]), @"users of unit 1 = [5] is not possible: they must be in order, from 6 blocks, and begin with the owner, 0");
    insta::assert_snapshot!(text(&|c| c.split = vec![usize::MAX, 2]), @"sum of pipeline.stages = 18446744073709551615 is not possible: there can be at most 1048576 blocks");
    insta::assert_snapshot!(text(&|c| c.units[1].elements = usize::MAX / 4), @"the sum of all sizes = 1e22 bytes is not possible: at most 9e18 can be counted");
    assert!(matches!(
        Footprint::of(&Configuration { split: vec![3], ..tied() }),
        Err(FootprintError::Split(_))
    ));
    assert!(matches!(
        Footprint::of(&Configuration { chunks: 2, ..tied() }),
        Err(FootprintError::Schedule(_))
    ));
}

#[test]
fn what_stages_send_is_unknown_where_activations_are() {
    let unknown = Configuration { boundary_activations: Vec::new(), ..tied() };
    let text = Footprint::of(&unknown).unwrap().render();
    assert!(text.contains("and activations, unknown, in 5 calls"), "{text}");
    assert!(text.contains("send unknown in 4 calls"), "{text}");
    let pair = Configuration {
        units: unknown.units.into_iter().filter(|unit| unit.users.len() == 1).collect(),
        ..unknown
    };
    assert_eq!(Footprint::of(&pair).unwrap().render().matches("send unknown in 4 calls").count(), 2);
}

#[test]
fn the_text_has_a_few_lines_for_each_stage() {
    let mut configuration = blocks(&[600_000, 1_200_000, 1_200_000, 1_200_000, 1_200_000, 3000]);
    configuration.units.insert(1, UnitSize::trained(3_000_000, vec![0, 5]));
    let configuration = Configuration { zero_stage: 3, units: configuration.units, ..tied() };
    insta::assert_snapshot!(Footprint::of(&configuration).unwrap().render(), @r"
    stage 0: blocks 0-2
      memory  parameters 11.4 MiB (+ 18.3 MiB gathered)  gradients 11.4 MiB (+ 21.7 MiB working set)  optimizer 22.9 MiB  boundary activations 6.1 KiB  saved activations unknown  together 85.8 MiB
      sends   reduce_scatter 45.8 MiB in 16 calls  all_gather 71.0 MiB in 25 calls  send 5.7 MiB in 5 calls
    stage 1: blocks 3-5
      memory  parameters 10.3 MiB (+ 16.0 MiB gathered)  gradients 4.6 MiB (+ 13.7 MiB working set)   optimizer 9.2 MiB   boundary activations 3.0 KiB  saved activations unknown  together 53.8 MiB
      sends   reduce_scatter 18.3 MiB in 12 calls  all_gather 52.7 MiB in 21 calls  send 45.8 MiB in 4 calls
    ");
    let alone =
        Configuration { pp: 1, dp: 1, split: vec![6], boundary_activations: Vec::new(), ..configuration };
    insta::assert_snapshot!(Footprint::of(&alone).unwrap().render(), @r"
    stage 0: blocks 0-5
      memory  parameters 32.1 MiB  gradients 32.1 MiB (+ 32.1 MiB working set)  optimizer 64.1 MiB  boundary activations unknown  saved activations unknown  together 160.3 MiB
      sends   nothing
    ");
}
