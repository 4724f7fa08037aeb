//! Attention on the CPU: of queries, keys and values, or of one tensor with all of them.

use brigade_simd::DropoutMask;
use brigade_simd::attention::{
    AttentionShape, HeadStrides, HeadVectors, HeadVectorsMut, Probabilities, attention_backward,
};
use burn_flex::FlexTensor;

use super::{Buffer, FusedOperation, Number, contiguous, values};
use crate::mask::Mask;

#[derive(Debug, Clone)]
pub(crate) struct Attention {
    pub shape: AttentionShape,
    pub mask: Mask,
    pub scale: f32,
    pub dropout: Option<DropoutMask>,
}

/// What the backward pass needs: the inputs, the output and the softmax's logarithms.
#[derive(Debug, Clone)]
pub(crate) struct Saved<const N: usize> {
    inputs: [FlexTensor; N],
    output: FlexTensor,
    logarithms: FlexTensor,
}

impl Attention {
    fn probabilities(&self) -> Probabilities<'_> {
        Probabilities { visible: self.mask.visible(), scale: self.scale, dropout: self.dropout }
    }

    fn forward<T: Number>(
        &self,
        vectors: [HeadVectors<'_, T>; 3],
        output: HeadVectorsMut<'_, T>,
    ) -> FlexTensor {
        let rows = self.shape.rows();
        let mut logarithms = Buffer::<f32>::new(rows);
        let probabilities = self.probabilities();
        brigade_simd::attention::attention(&self.shape, vectors, probabilities, output, &mut logarithms);
        logarithms.into_tensor([rows])
    }

    fn backward<T: Number>(
        &self,
        vectors: [HeadVectors<'_, T>; 3],
        [output, gradient]: [HeadVectors<'_, T>; 2],
        logarithms: &FlexTensor,
        gradients: [HeadVectorsMut<'_, T>; 3],
    ) {
        let (probabilities, logarithms) = (self.probabilities(), values(logarithms));
        attention_backward(&self.shape, vectors, probabilities, output, logarithms, gradient, gradients);
    }
}

/// Of queries, keys and values.
#[derive(Debug)]
pub(crate) struct Separate(pub Attention);

/// Where the vectors of `[batch, heads, positions, depth]` are, if each is contiguous and none overlap.
fn strides(tensor: &FlexTensor) -> Option<HeadStrides> {
    let (shape, strides) = (tensor.layout().shape(), tensor.layout().strides());
    let &[batch, head, position, element] = strides else { return None };
    // Where there is only one, its stride means nothing.
    let stride = |stride: isize, axis: usize| match shape[axis] {
        1 => Some(stride.unsigned_abs()),
        _ => usize::try_from(stride).ok(),
    };
    if element != 1 && shape[3] != 1 {
        return None;
    }
    Some(HeadStrides { batch: stride(batch, 0)?, position: stride(position, 2)?, head: stride(head, 1)? })
}

/// The tensor with vectors in one piece each.
fn vectors_in_pieces(tensor: FlexTensor) -> FlexTensor {
    if strides(&tensor).is_some() { tensor } else { contiguous(tensor) }
}

fn vectors<T: Number>(tensor: &FlexTensor) -> HeadVectors<'_, T> {
    let strides = strides(tensor).unwrap_or_else(|| panic!("vectors of {tensor:?} are not in one piece"));
    HeadVectors { values: &tensor.storage()[tensor.layout().start_offset()..], strides }
}

/// A new `[batch, heads, positions, depth]` whose heads and positions have the memory order of another one.
struct New<T> {
    values: Buffer<T>,
    shape: [usize; 4],
    positions_first: bool,
}

impl<T: Number> New<T> {
    fn like(other: &FlexTensor, shape: [usize; 4]) -> Self {
        let positions_first = strides(other).is_some_and(|strides| strides.head < strides.position);
        Self { values: Buffer::new(shape.iter().product()), shape, positions_first }
    }

    fn vectors(&mut self) -> HeadVectorsMut<'_, T> {
        let [_, heads, positions, depth] = self.shape;
        let [position, head] =
            if self.positions_first { [heads * depth, depth] } else { [depth, positions * depth] };
        let strides = HeadStrides { batch: heads * positions * depth, position, head };
        HeadVectorsMut::new(&mut self.values, strides)
    }

    fn into_tensor(self) -> FlexTensor {
        let [batch, heads, positions, depth] = self.shape;
        match self.positions_first {
            false => self.values.into_tensor(self.shape),
            true => self.values.into_tensor([batch, positions, heads, depth]).transpose(1, 2),
        }
    }
}

impl FusedOperation<3> for Separate {
    type Saved = Saved<3>;
    type Extra = ();

    fn forward<T: Number>(
        &self,
        inputs: [FlexTensor; 3],
        _: [bool; 3],
    ) -> (FlexTensor, Option<Saved<3>>, ()) {
        let inputs = inputs.map(vectors_in_pieces);
        let AttentionShape { batch, heads, queries, value_depth, .. } = self.0.shape;
        let mut output = New::<T>::like(&inputs[0], [batch, heads, queries, value_depth]);
        let logarithms = self.0.forward(inputs.each_ref().map(vectors), output.vectors());
        let output = output.into_tensor();
        (output.clone(), Some(Saved { inputs, output, logarithms }), ())
    }

    fn backward<T: Number>(
        self,
        saved: Saved<3>,
        gradient: FlexTensor,
        _: [bool; 3],
    ) -> [Option<FlexTensor>; 3] {
        let gradient = vectors_in_pieces(gradient);
        let mut gradients = saved.inputs.each_ref().map(|input| {
            let shape = input.layout().shape();
            New::<T>::like(input, [shape[0], shape[1], shape[2], shape[3]])
        });
        let outs = gradients.each_mut().map(New::vectors);
        let results = [vectors(&saved.output), vectors(&gradient)];
        self.0.backward(saved.inputs.each_ref().map(vectors), results, &saved.logarithms, outs);
        gradients.map(|gradient| Some(gradient.into_tensor()))
    }
}

/// Of one tensor with all of them.
#[derive(Debug)]
pub(crate) struct Packed(pub Attention);

impl Packed {
    fn width(&self) -> usize {
        let AttentionShape { heads, key_heads, depth, .. } = self.0.shape;
        (heads + 2 * key_heads) * depth
    }

    fn strides(&self) -> HeadStrides {
        let AttentionShape { queries, depth, .. } = self.0.shape;
        HeadStrides { batch: queries * self.width(), position: self.width(), head: depth }
    }

    /// Of the result.
    fn mixed_strides(&self) -> HeadStrides {
        let AttentionShape { queries, depth, heads, .. } = self.0.shape;
        HeadStrides { batch: queries * heads * depth, position: heads * depth, head: depth }
    }

    /// Where queries, keys and values begin.
    fn starts(&self) -> [usize; 3] {
        let AttentionShape { heads, key_heads, depth, .. } = self.0.shape;
        [0, heads * depth, (heads + key_heads) * depth]
    }

    fn vectors<'a, T: Number>(&self, qkv: &'a FlexTensor) -> [HeadVectors<'a, T>; 3] {
        let strides = self.strides();
        // Where there are no positions, there is nothing to start in.
        let from = |start: usize| values::<T>(qkv).get(start..).unwrap_or_default();
        self.starts().map(|start| HeadVectors { values: from(start), strides })
    }
}

impl FusedOperation<1> for Packed {
    type Saved = Saved<1>;
    type Extra = ();

    fn forward<T: Number>(
        &self,
        inputs: [FlexTensor; 1],
        _: [bool; 1],
    ) -> (FlexTensor, Option<Saved<1>>, ()) {
        let inputs = inputs.map(contiguous);
        let AttentionShape { batch, heads, queries, depth, .. } = self.0.shape;
        let mut output = Buffer::<T>::new(batch * queries * heads * depth);
        let strides = self.mixed_strides();
        let logarithms = self.0.forward(self.vectors(&inputs[0]), HeadVectorsMut::new(&mut output, strides));
        let output = output.into_tensor([batch, queries, heads * depth]);
        (output.clone(), Some(Saved { inputs, output, logarithms }), ())
    }

    fn backward<T: Number>(
        self,
        saved: Saved<1>,
        gradient: FlexTensor,
        _: [bool; 1],
    ) -> [Option<FlexTensor>; 1] {
        let gradient = contiguous(gradient);
        let AttentionShape { heads, key_heads, depth, .. } = self.0.shape;
        let widths = [heads, key_heads, key_heads].map(|heads| heads * depth);
        let [qkv] = &saved.inputs;
        let mut d_qkv = Buffer::<T>::new(qkv.layout().num_elements());
        let gradients = HeadVectorsMut::side_by_side(&mut d_qkv, widths, self.strides());
        let mixed = |tensor| HeadVectors { values: values(tensor), strides: self.mixed_strides() };
        let results = [mixed(&saved.output), mixed(&gradient)];
        self.0.backward(self.vectors(qkv), results, &saved.logarithms, gradients);
        [Some(d_qkv.into_tensor(qkv.layout().shape().clone()))]
    }
}
