//! Reading whole weights.

use std::convert::Infallible;
use std::fs::File;
use std::path::{Path, PathBuf};

use brigade_core::Chain;
use half::{bf16, f16};
use memmap2::Mmap;
use safetensors::{Dtype, SafeTensors, tensor::TensorView};

use super::error::WeightsError;
use super::mapping::WeightsMapping;
use super::piece::{Panel, Piece, pieces};

/// Makes all parameters of a chain take their values from a file of fp32, fp16 or bf16 tensors. All are looked
/// up at once; values are read when a block first needs them. Tensors that the model does not know are left alone.
///
/// # Errors
/// If the file is not whole, a tensor is missing or of another shape, or a parameter cannot be stored as the mapping says.
pub fn load_safetensors<I, O>(
    path: &Path,
    chain: &mut Chain<I, O>,
    mapping: &WeightsMapping,
) -> Result<(), WeightsError>
where
    I: brigade_core::Activation,
    O: brigade_core::Activation,
{
    let io = |source| WeightsError::Io { path: path.to_owned(), source };
    let file = File::open(path).map_err(io)?;
    // SAFETY: the map is read only here, and files of weights are written aside and renamed, never changed in place; whoever else
    // writes one must keep to that, too, until it is loaded. One that is cut short meanwhile ends the process by SIGBUS; nothing
    // outside the map is read.
    let map = unsafe { Mmap::map(&file) }.map_err(io)?;
    let file = WeightsFile { path: path.to_owned(), map, mapping: mapping.clone() };
    let followers = chain.followers();
    let tensors = file.tensors()?;
    for (name, shape) in chain.shapes().iter().filter(|(name, _)| !followers.contains(name)) {
        file.views(&tensors, name, shape)?;
    }
    drop(tensors);
    chain.load(move |name, shape| {
        let tensors = file.tensors()?;
        let mut values = vec![0.0; shape.iter().product()];
        for (piece, view) in file.views(&tensors, name, shape)? {
            read(&piece, &view, &mut values);
        }
        Ok(Some(values))
    });
    Ok(())
}

/// An open file of weights.
struct WeightsFile {
    path: PathBuf,
    map: Mmap,
    mapping: WeightsMapping,
}

impl WeightsFile {
    fn tensors(&self) -> Result<SafeTensors<'_>, WeightsError> {
        SafeTensors::deserialize(&self.map)
            .map_err(|source| WeightsError::Format { path: self.path.clone(), source })
    }

    /// What makes up a parameter, each with its tensor, whose type and shape are those that the parameter needs.
    fn views<'t>(
        &self,
        tensors: &SafeTensors<'t>,
        name: &str,
        shape: &[usize],
    ) -> Result<Vec<(Piece, TensorView<'t>)>, WeightsError> {
        let stored = self.mapping.stored(name);
        let pieces = pieces(&self.path, name, shape, &stored)?;
        let view = |piece: Piece| match self.view(tensors, &piece) {
            Ok(view) => Ok((piece, view)),
            Err(WeightsError::Mismatch { path, name: tensor, found, needed }) if stored.is_changed() => {
                let needed = format!("{needed} for its parameter `{name}` {shape:?}, stored as {stored}");
                Err(WeightsError::Mismatch { path, name: tensor, found, needed })
            }
            Err(error) => Err(error),
        };
        pieces.into_iter().map(view).collect()
    }

    fn view<'t>(&self, tensors: &SafeTensors<'t>, piece: &Piece) -> Result<TensorView<'t>, WeightsError> {
        let Piece { tensor: name, shape, .. } = piece;
        let view = tensors
            .tensor(name)
            .or_else(|_| tensors.tensor(&format!("{}{name}", self.mapping.optional_prefix())));
        let view = view.map_err(|_| {
            let mut known: Vec<_> = tensors.names().into_iter().map(str::to_owned).collect();
            known.sort();
            let (found, first) = (known.len(), known.into_iter().next().unwrap_or_default());
            WeightsError::Missing { path: self.path.clone(), name: name.clone(), found, first }
        })?;
        if view.shape() != shape || !matches!(view.dtype(), Dtype::F32 | Dtype::F16 | Dtype::BF16) {
            return Err(WeightsError::Mismatch {
                path: self.path.clone(),
                name: name.clone(),
                found: format!("{:?} {:?}", view.dtype(), view.shape()),
                needed: format!("F32, F16 or BF16 {shape:?}"),
            });
        }
        Ok(view)
    }
}

/// Copies a piece of a tensor to its place among a parameter's values.
fn read(piece: &Piece, view: &TensorView<'_>, values: &mut [f32]) {
    match view.dtype() {
        Dtype::F16 => copy(piece, view.data(), values, |bytes| f16::from_le_bytes(bytes).to_f32()),
        Dtype::BF16 => copy(piece, view.data(), values, |bytes| bf16::from_le_bytes(bytes).to_f32()),
        _ => copy(piece, view.data(), values, f32::from_le_bytes),
    }
}

fn copy<const N: usize>(piece: &Piece, data: &[u8], values: &mut [f32], decode: impl Fn([u8; N]) -> f32) {
    let elements = data.as_chunks::<N>().0;
    let Ok(()) = piece.panels::<Infallible>(&mut |panel| {
        let Panel { in_tensor, in_parameter, rows, columns } = panel;
        if columns.in_parameter == 1 {
            for row in 0..rows.size {
                let from = &elements[in_tensor + row * rows.in_tensor..][..columns.size];
                let to = &mut values[in_parameter + row * rows.in_parameter..][..columns.size];
                to.iter_mut().zip(from).for_each(|(value, bytes)| *value = decode(*bytes));
            }
            return Ok(());
        }
        for column in 0..columns.size {
            for row in 0..rows.size {
                values[in_parameter + row * rows.in_parameter + column * columns.in_parameter] =
                    decode(elements[in_tensor + row * rows.in_tensor + column]);
            }
        }
        Ok(())
    });
}
