//! Collectives that were measured on a cluster.

use serde::Serialize;

use super::Collective;

/// Bus bandwidths as `nccl-tests` print them, measured with one message size over this many whole nodes.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct MeasuredLinks {
    /// Bytes of the message.
    pub message: f64,
    /// Numbers of nodes, rising.
    pub nodes: Vec<usize>,
    /// Bytes a second of an all-reduce, for each number of nodes.
    pub all_reduce: Vec<f64>,
    /// The same of an all-gather.
    pub all_gather: Vec<f64>,
    /// The same of a reduce-scatter.
    pub reduce_scatter: Vec<f64>,
}

impl MeasuredLinks {
    /// Bus bandwidth of an operation at the measured number of nodes that is nearest to this one, with that number; between two of them by a straight line of
    /// logarithms, with this number. One node and several have different links, so neither says anything of the other: none where only the other was measured.
    pub fn nearest(&self, collective: Collective, nodes: usize) -> Option<(usize, f64)> {
        let measured = match collective {
            Collective::AllReduce => &self.all_reduce,
            Collective::AllGather => &self.all_gather,
            Collective::ReduceScatter => &self.reduce_scatter,
        };
        let points = self.nodes.iter().copied().zip(measured.iter().copied());
        let points: Vec<(usize, f64)> = points.filter(|(there, _)| (*there > 1) == (nodes > 1)).collect();
        let next = points.iter().position(|(there, _)| *there >= nodes);
        match next {
            Some(0) => points.first().copied(),
            None => points.last().copied(),
            Some(next) => {
                let ((n0, b0), (n1, b1)) = (points[next - 1], points[next]);
                let share = (nodes as f64 / n0 as f64).ln() / (n1 as f64 / n0 as f64).ln();
                Some((nodes, b0 * (b1 / b0).powf(share)))
            }
        }
    }

    /// What of a cluster of this many nodes was not measured, and what counts there instead. None if the measurements cover it.
    pub fn gap(&self, nodes: usize) -> Option<String> {
        let one = self.nodes.contains(&1);
        match self.nodes.iter().copied().filter(|there| *there > 1).max() {
            None if nodes > 1 => Some(
                "collectives were measured within one node only; between nodes, the links' bandwidths and latencies are used"
                    .into(),
            ),
            Some(most) if nodes > most => Some(format!(
                "collectives were measured over at most {most} nodes; for up to {nodes}, they are extrapolated as rings over the links slow down"
            )),
            _ if !one => Some(
                "collectives were measured between nodes only; within a node, the links' bandwidths and latencies are used"
                    .into(),
            ),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn links(nodes: &[usize]) -> MeasuredLinks {
        let bandwidths: Vec<f64> = nodes.iter().map(|nodes| 400e9 / *nodes as f64).collect();
        MeasuredLinks {
            message: 256e6,
            nodes: nodes.to_vec(),
            all_reduce: bandwidths.clone(),
            all_gather: bandwidths.clone(),
            reduce_scatter: bandwidths,
        }
    }

    #[test]
    fn one_node_and_several_are_apart() {
        let of = |measured: &[usize], nodes| links(measured).nearest(Collective::AllGather, nodes);
        assert_eq!(of(&[1], 1), Some((1, 400e9)));
        assert_eq!(of(&[1], 2), None);
        assert_eq!(of(&[2, 4], 1), None);
        assert_eq!(of(&[1, 4], 2), Some((4, 100e9)), "not between one node and four");
        assert_eq!(of(&[1, 2, 4], 64), Some((4, 100e9)));
        let (nodes, between) = of(&[1, 2, 8], 4).unwrap();
        assert!(nodes == 4 && (between / 100e9 - 1.0).abs() < 1e-12, "{between}");
    }

    #[test]
    fn what_was_not_measured_is_said() {
        let gap = |measured: &[usize], nodes| links(measured).gap(nodes).unwrap_or_default();
        assert_eq!([gap(&[1], 1), gap(&[1, 2, 8], 8), gap(&[1, 4], 2)], [""; 3]);
        assert!(gap(&[1], 64).contains("within one node only"));
        assert!(gap(&[1, 4], 64).contains("over at most 4 nodes; for up to 64"));
        assert!(gap(&[2, 4], 4).contains("between nodes only"));
    }
}
