//! How a forward in training changes a block's running state, found by running the block.

use burn::tensor::Device;

use super::{NOTHING, from_vec, set_running, to_vec};
use crate::error::{Error, Result};
use crate::model::Dtype;
use crate::model::activation::{Parts, bytes};
use crate::model::block::NamedBlock;
use crate::nn::leaving_running_state;
use crate::sharding::layout::FlatLayout;

/// A value that makes each of these terms vanish beside its product with a factor of 2⁻¹⁶ or more, and divides that product without rounding: a power of two, whichever it is,
/// gives the same factor. Infinite if the terms are too large for one.
fn large_beside(terms: &[f32]) -> f32 {
    let largest = terms.iter().fold(0f32, |largest, term| largest.max(term.abs()));
    let exponent = (largest.log2().ceil() as i32).saturating_add(41);
    2f32.powi(exponent.max(60))
}

/// Runs a block with several values of its running state.
pub(crate) struct Probe<'a> {
    /// A copy in fp32.
    block: NamedBlock,
    /// Where its state is in flat values.
    layouts: Vec<&'a FlatLayout>,
    /// Whether layers may compute over ranks.
    over_ranks: bool,
    run: &'a mut dyn FnMut(&NamedBlock) -> Result<Parts>,
}

/// The elements of all layouts, one after the other.
type Values = Vec<f32>;

/// How a block updates its running state.
pub(crate) struct Learned {
    /// The factor of each element; none for those that stay as they are.
    pub factors: Vec<Option<f32>>,
    /// Whether ranks compute an element's term together.
    pub together: Vec<bool>,
    /// What a forward is to find: [`NOTHING`], and the values of the elements that stay.
    pub found: Values,
}

impl<'a> Probe<'a> {
    /// Of a copy of a block, on this device or on the block's own. `run` runs it on an input that the block may really get, in fp32 as well.
    pub(crate) fn of(
        block: &NamedBlock,
        layouts: Vec<&'a FlatLayout>,
        device: Option<Device>,
        over_ranks: bool,
        run: &'a mut dyn FnMut(&NamedBlock) -> Result<Parts>,
    ) -> Self {
        let copy = block.block.copy_with_values(Dtype::F32, device);
        Self { block: NamedBlock { name: block.name.clone(), block: copy }, layouts, over_ranks, run }
    }

    /// How the block updates its state, which is `start`; nothing if this micro-batch cannot tell, because its values are not finite or too
    /// large.
    ///
    /// # Errors
    /// If no factors and terms say so.
    pub(crate) fn learn(&mut self, start: &[f32]) -> Result<Option<Learned>> {
        let start = start.to_vec();
        let (output, after) = self.run_with(&start)?;
        let mut stays: Vec<bool> =
            start.iter().zip(&after).map(|(s, a)| s.to_bits() == a.to_bits()).collect();
        if stays.contains(&true) {
            // What a forward leaves as it is, it leaves as it is from another value, too.
            let other: Values = start
                .iter()
                .zip(&stays)
                .map(|(s, stays)| {
                    if !*stays {
                        *s
                    } else if *s == 0.0 {
                        1.0
                    } else {
                        2.0 * s
                    }
                })
                .collect();
            let (_, after) = self.run_with(&other)?;
            stays
                .iter_mut()
                .enumerate()
                .for_each(|(i, stays)| *stays &= other[i].to_bits() == after[i].to_bits());
        }
        let with = |value: f32| -> Values {
            start.iter().zip(&stays).map(|(s, stays)| if *stays { *s } else { value }).collect()
        };
        let (zeros, ones) = (with(0.0), with(1.0));
        let (output_of_zeros, terms) = self.run_with(&zeros)?;
        let (output_of_ones, after_ones) = self.run_with(&ones)?;
        let moved: Values =
            terms.iter().zip(&stays).filter(|(_, stays)| !**stays).map(|(term, _)| *term).collect();
        let large_value = large_beside(&moved);
        let large = with(large_value);
        let (output_of_large, products) = self.run_with(&large)?;
        // A minimum of negative numbers looks like a term with the others.
        let (_, negative_products) = self.run_with(&with(-large_value))?;
        let is_usable = |i: usize| stays[i] || (products[i].is_finite() && terms[i].is_finite());
        if !(0..start.len()).all(is_usable) {
            return Ok(None);
        }
        if [&output_of_zeros, &output_of_ones, &output_of_large].into_iter().any(|other| *other != output)
            && self.is_steady(&start, &output)?
        {
            return Err(self.refused(None, "its output in training depends on it"));
        }
        let factor = |i: usize| (!stays[i]).then(|| (products[i] - terms[i]) / large_value);
        let factors: Vec<Option<f32>> = (0..start.len()).map(factor).collect();
        let tolerance = 2f32.powi(-22);
        // The state may begin at 0, which the term alone explains.
        let is_explained = |i: usize, before: f32, after: f32| {
            let Some(factor) = factors[i] else { return true };
            let (product, term) = (factor * before, terms[i]);
            (after - (product + term)).abs() <= tolerance * (product.abs() + term.abs())
        };
        let are_explained = |i: &usize| {
            is_explained(*i, start[*i], after[*i])
                && is_explained(*i, ones[*i], after_ones[*i])
                && is_explained(*i, -large_value, negative_products[*i])
        };
        if let Some(i) = (0..start.len()).find(|i| !are_explained(i)) {
            let what = format!(
                "a forward makes {} of {}, {} of 0, {} of 1 and {:e} of {large_value:e}",
                after[i], start[i], terms[i], after_ones[i], products[i]
            );
            return Err(self.refused(Some(i), &what));
        }
        let mut together = vec![false; start.len()];
        if self.over_ranks {
            let (_, left) = leaving_running_state(|| self.run_with(&large))?;
            let is_left = |i: usize| left[i].to_bits() == large_value.to_bits() && products[i] != large_value;
            together.iter_mut().enumerate().for_each(|(i, together)| *together = !stays[i] && is_left(i));
        }
        let found = with(NOTHING);
        Ok(Some(Learned { factors, together, found }))
    }

    /// Whether the block gives the same bits again; on GPUs that is not always so.
    fn is_steady(&mut self, start: &Values, output: &[Vec<u8>]) -> Result<bool> {
        Ok(self.run_with(start)?.0 == output)
    }

    /// The output's bytes, and the running state after the forward.
    fn run_with(&mut self, values: &Values) -> Result<(Vec<Vec<u8>>, Values)> {
        let (mut at, device) = (0, self.block.block.device().map(Device::inner).unwrap_or_default());
        let part = |layout: &&'a FlatLayout| {
            let range = at..at + layout.len();
            at = range.end;
            (*layout, from_vec(values[range].to_vec(), &device))
        };
        let bound: Vec<_> = self.layouts.iter().map(part).collect();
        set_running(&mut self.block, &bound);
        let output = bytes((self.run)(&self.block)?)?;
        Ok((output, self.state()?))
    }

    /// What the block has at present.
    pub(crate) fn state(&self) -> Result<Values> {
        let left = self.block.block.running_values();
        let mut values = Values::new();
        for param in self.layouts.iter().flat_map(|layout| layout.params()) {
            match left.get(&param.path) {
                Some(value) => values.extend(to_vec(value.flat.clone())?),
                None => return Err(self.refused(None, "it is gone after a forward")),
            }
        }
        Ok(values)
    }

    fn refused(&self, element: Option<usize>, why: &str) -> Error {
        let params = self.layouts.iter().flat_map(|layout| layout.params());
        let mut before = 0;
        let mut of_element = params.clone().filter(|param| {
            before += param.range.len();
            element.is_some_and(|element| element < before)
        });
        let names: Vec<String> = match of_element.next() {
            Some(param) => vec![format!("`{}`", param.path)],
            None => params.map(|param| format!("`{}`", param.path)).collect(),
        };
        Error::Model(format!(
            "block `{}` has running state that ranks cannot merge, {}: {why}. What can be merged is state that a forward in training changes from s to factor · s + term, with a term that comes from the micro-batch alone, and that its output does not depend on",
            self.block.name,
            names.join(", ")
        ))
    }
}
