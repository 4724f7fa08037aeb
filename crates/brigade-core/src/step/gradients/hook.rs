//! Functions of a program that change or look at gradients before an update.

use std::ops::Range;
use std::sync::Arc;

use brigade_random::keyed_seed;
use burn::tensor::{DType, Tensor};

use crate::error::{Error, Result};
use crate::model::random_state::with_seed;
use crate::sharding::layout::FlatLayout;
use crate::sharding::store::StoredUnit;

/// The part of a unit's gradient that a rank owns.
///
/// A unit is a flat buffer of parameters: those of a block that are of the same kind, in the order of their paths, or one that blocks
/// share. Without ZeRO, a rank has all elements of the units of its pipeline stage; with ZeRO, a range of each.
#[derive(Debug, Clone)]
pub struct UnitGradient<'a> {
    /// The step that makes the update, counted from 1.
    pub step: u64,
    /// The unit's name: the block's, with what is particular to the unit behind it.
    pub unit: &'a str,
    /// The name of the block that the parameters are of.
    pub block: &'a str,
    /// Which parameters the unit has, and where.
    pub layout: &'a FlatLayout,
    /// The elements of the unit that the gradient has, without padding.
    pub range: Range<usize>,
}

/// The part of a parameter that is in a [`UnitGradient`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParameterPart {
    /// `block.path`.
    pub name: String,
    /// Which of the parameter's elements, flattened in row-major order.
    pub elements: Range<usize>,
    /// Where they are in the gradient.
    pub place: Range<usize>,
}

impl UnitGradient<'_> {
    /// The parameters of which the gradient has elements, in order.
    pub fn parameters(&self) -> impl Iterator<Item = ParameterPart> {
        self.layout.params().iter().filter_map(|param| {
            let part = param.range.start.max(self.range.start)..param.range.end.min(self.range.end);
            (!part.is_empty()).then(|| ParameterPart {
                name: format!("{}.{}", self.block, param.path),
                elements: part.start - param.range.start..part.end - param.range.start,
                place: part.start - self.range.start..part.end - self.range.start,
            })
        })
    }
}

/// See [`UntypedEngine::on_gradient`].
pub(crate) type GradientHook = Arc<dyn Fn(&UnitGradient<'_>, Tensor<1>) -> Tensor<1> + Send + Sync>;

/// The rank's own elements of a unit's gradient after the hooks. Padding is unchanged.
pub(crate) fn run(
    hooks: &[GradientHook],
    (seed, step): (u64, u64),
    (stored, block): (&StoredUnit, &str),
    gradient: Tensor<1>,
) -> Result<Tensor<1>> {
    let (unit, own) = (&stored.unit, &stored.own);
    let range = own.start..own.end.min(unit.layout.len());
    if range.is_empty() {
        return Ok(gradient);
    }
    let mut changed = gradient.clone().slice(0..range.len());
    let about = UnitGradient { step, unit: &unit.name, block, layout: &unit.layout, range: range.clone() };
    let seed = keyed_seed(seed, &format!("gradient/{}/{step}/{}", unit.name, range.start));
    for (number, hook) in hooks.iter().enumerate() {
        let seed = keyed_seed(seed, &number.to_string());
        changed = with_seed(&gradient.device(), seed, || hook(&about, changed));
        if changed.dims() != [range.len()] || changed.dtype() != DType::F32 {
            return Err(Error::Model(format!(
                "a gradient hook must return {} values of fp32 for the unit `{}`, as many as it was given, but returned {:?} \
                of {:?}",
                range.len(),
                unit.name,
                changed.dims(),
                changed.dtype()
            )));
        }
    }
    Ok(match own.len() - range.len() {
        0 => changed,
        padding => Tensor::cat(vec![changed, gradient.slice(range.len()..range.len() + padding)], 0),
    })
}
