//! Fewer points than steps, in which no outlier is lost.

/// How the points of a group of steps follow from their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Aggregation {
    /// The least and the greatest number, in the order in which they come.
    Extremes,
    /// The mean, twice.
    Mean,
}

/// The groups of steps that two points each stand for.
#[derive(Debug, Clone, Copy)]
pub struct Thinned {
    length: usize,
    /// Steps of a group; 1 where every step is a point.
    group: usize,
}

impl Thinned {
    /// Of `length` steps to at most `most` points.
    pub fn to(length: usize, most: usize) -> Self {
        let group = if length <= most { 1 } else { (2 * length).div_ceil(most) };
        Self { length, group }
    }

    /// How many steps two neighbouring points stand for.
    pub fn steps_per_point(self) -> usize {
        self.group
    }

    /// Where the points stand: at the first step of a group and in its middle.
    pub fn places<T: Copy>(self, values: &[T]) -> Vec<T> {
        if self.group == 1 {
            return values.to_vec();
        }
        values.chunks(self.group).flat_map(|group| [group[0], group[group.len() / 2]]).collect::<Vec<T>>()
            [..self.points()]
            .to_vec()
    }

    /// Two points for each group; one for a last group of a single step.
    fn points(self) -> usize {
        let (groups, rest) = (self.length / self.group, self.length % self.group);
        2 * groups + rest.min(2)
    }

    /// The numbers of the points.
    pub fn values(self, values: &[Option<f64>], aggregation: Aggregation) -> Vec<Option<f64>> {
        if self.group == 1 {
            return values.to_vec();
        }
        let mut points: Vec<Option<f64>> =
            values.chunks(self.group).flat_map(|group| pair(group, aggregation)).collect();
        points.truncate(self.points());
        points
    }
}

fn pair(group: &[Option<f64>], aggregation: Aggregation) -> [Option<f64>; 2] {
    let known = || group.iter().enumerate().filter_map(|(at, value)| Some((at, (*value)?)));
    match aggregation {
        Aggregation::Mean => {
            let (sum, count) =
                known().fold((0.0, 0.0), |(sum, count), (_, value)| (sum + value, count + 1.0));
            [(count > 0.0).then(|| sum / count); 2]
        }
        Aggregation::Extremes => {
            let least = known().min_by(|a, b| a.1.total_cmp(&b.1));
            let most = known().max_by(|a, b| a.1.total_cmp(&b.1));
            let [first, second] = match (least, most) {
                (Some(least), Some(most)) if least.0 > most.0 => [Some(most), Some(least)],
                other => [other.0, other.1],
            };
            [first, second].map(|point| point.map(|(_, value)| value))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outliers_stay() {
        let mut values: Vec<Option<f64>> = (0..1001).map(|at| Some(f64::from(at))).collect();
        values[500] = Some(-7.0);
        values[501] = Some(9e9);
        values[900..].fill(None);
        let steps: Vec<u64> = (1..=1001).collect();
        let thinned = Thinned::to(1001, 100);
        let (places, points) = (thinned.places(&steps), thinned.values(&values, Aggregation::Extremes));
        assert_eq!(places.len(), points.len());
        assert!(places.len() <= 100 && places.is_sorted_by(|a, b| a < b), "{places:?}");
        assert!(points.contains(&Some(-7.0)) && points.contains(&Some(9e9)));
        assert_eq!(points.last(), Some(&None));
        let all = Thinned::to(3, 3);
        assert_eq!(all.values(&values[..3], Aggregation::Mean), values[..3]);
        let means = Thinned::to(4, 2).values(&[Some(1.0), None, Some(2.0), Some(6.0)], Aggregation::Mean);
        assert_eq!(means, [Some(3.0), Some(3.0)]);
    }
}
