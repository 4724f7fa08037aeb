//! Laws of scaling, fitted to measurements.

/// A share of the work that more ranks do not speed up, and how well it explains what was measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Law {
    /// The serial share, from 0 to 1.
    pub serial: f64,
    /// The largest relative difference between the law and a measured speed-up.
    pub error: f64,
}

/// A speed-up on a number of ranks.
type Measured = (f64, f64);

/// Amdahl's law, for a problem that stays as large: `1 / (s + (1 - s) / n)` (Amdahl 1967). `measured`: pairs of the number of ranks, in those
/// of the smallest run, and the speed-up.
///
/// Fitted by least squares in `1 / speed-up`, which is linear in `s`.
pub fn amdahl(measured: &[Measured]) -> Option<Law> {
    // 1/S - 1/n = s (1 - 1/n)
    let serial = slope(measured.iter().map(|(n, speed_up)| (1.0 - 1.0 / n, 1.0 / speed_up - 1.0 / n)))?;
    Some(law(serial, measured, amdahl_speed_up))
}

/// Gustafson's law, for a problem that grows with the ranks: `n - s (n - 1)` (Gustafson 1988). `measured` as for [`amdahl`], with the
/// speed-up in targets per second.
pub fn gustafson(measured: &[Measured]) -> Option<Law> {
    let serial = slope(measured.iter().map(|(n, speed_up)| (n - 1.0, n - speed_up)))?;
    Some(law(serial, measured, gustafson_speed_up))
}

/// The speed-up that Amdahl's law gives.
pub fn amdahl_speed_up(serial: f64, n: f64) -> f64 {
    1.0 / (serial + (1.0 - serial) / n)
}

/// The speed-up that Gustafson's law gives.
pub fn gustafson_speed_up(serial: f64, n: f64) -> f64 {
    n - serial * (n - 1.0)
}

fn law(serial: f64, measured: &[Measured], speed_up: fn(f64, f64) -> f64) -> Law {
    let serial = serial.clamp(0.0, 1.0);
    let error = |(n, measured): &Measured| (speed_up(serial, *n) / measured - 1.0).abs();
    Law { serial, error: measured.iter().map(error).fold(0.0, f64::max) }
}

/// The slope of a line through the origin by least squares; none where all points are at it.
fn slope(points: impl Iterator<Item = (f64, f64)>) -> Option<f64> {
    let (xy, xx) = points.fold((0.0, 0.0), |(xy, xx), (x, y)| (xy + x * y, xx + x * x));
    (xx > 0.0).then(|| xy / xx)
}

/// The time that communication adds to a step: for each step of a ring a fixed time, and each byte that a rank sends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CommunicationModel {
    /// Seconds of one message: alpha.
    pub latency: f64,
    /// Bytes per second of a rank that are not hidden: 1 / beta. Infinite if bytes explain nothing.
    pub bandwidth: f64,
}

impl CommunicationModel {
    /// The seconds of a step in which each rank sends this many messages and bytes.
    pub fn seconds(&self, messages: f64, bytes: f64) -> f64 {
        self.latency * messages + bytes / self.bandwidth
    }
}

/// Fits the model to triples of messages and bytes of a rank, and the seconds that a step waited for them. By least squares, where neither part
/// may be negative. None where fewer than two runs sent anything, or none waited: one run fits any model.
pub fn communication(measured: &[(f64, f64, f64)]) -> Option<CommunicationModel> {
    let is_sent = |(messages, bytes, _): &&(f64, f64, f64)| *messages > 0.0 && *bytes > 0.0;
    let waited = measured.iter().filter(is_sent).any(|(_, _, seconds)| *seconds > 0.0);
    if measured.iter().filter(is_sent).count() < 2 || !waited {
        return None;
    }
    let sum = |of: &dyn Fn(&(f64, f64, f64)) -> f64| measured.iter().map(of).sum::<f64>();
    let (mm, bb, mb) = (sum(&|(m, _, _)| m * m), sum(&|(_, b, _)| b * b), sum(&|(m, b, _)| m * b));
    let (mt, bt) = (sum(&|(m, _, t)| m * t), sum(&|(_, b, t)| b * t));
    let determinant = mm * bb - mb * mb;
    let (latency, per_byte) = ((mt * bb - bt * mb) / determinant, (mm * bt - mb * mt) / determinant);
    let model = |latency: f64, per_byte: f64| CommunicationModel { latency, bandwidth: 1.0 / per_byte };
    // Where the two cannot be told apart, or one would be negative, the one alone that explains more.
    let is_both = determinant > 1e-9 * mm * bb && latency >= 0.0 && per_byte >= 0.0;
    let [of_messages, of_bytes] = [model(mt / mm, 0.0), model(0.0, bt / bb)];
    let error = |model: &CommunicationModel| sum(&|(m, b, t)| (model.seconds(*m, *b) - t).powi(2));
    Some(match is_both {
        true => model(latency, per_byte),
        false if error(&of_messages) < error(&of_bytes) => of_messages,
        false => of_bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn laws_find_the_share_that_made_the_numbers() {
        let measured = |speed_up: fn(f64, f64) -> f64| [2.0, 4.0, 8.0, 64.0].map(|n| (n, speed_up(0.07, n)));
        for (fit, speed_up) in [
            (amdahl as fn(&[_]) -> _, amdahl_speed_up as fn(f64, f64) -> f64),
            (gustafson, gustafson_speed_up),
        ] {
            let law: Law = fit(&measured(speed_up)).unwrap();
            assert!((law.serial - 0.07).abs() < 1e-12 && law.error < 1e-12, "{law:?}");
        }
        assert_eq!(amdahl(&[(1.0, 1.0)]), None);
        assert_eq!(amdahl(&[(2.0, 2.5)]).unwrap().serial, 0.0, "faster than linear");
    }

    #[test]
    fn communication_is_told_apart() {
        let seconds = |messages: f64, bytes: f64| 1e-4 * messages + bytes / 1e9;
        let measured = [(2.0, 1e6), (6.0, 1.5e6), (14.0, 1.75e6)].map(|(m, b)| (m, b, seconds(m, b)));
        let model = communication(&measured).unwrap();
        assert!(
            (model.latency / 1e-4 - 1.0).abs() < 1e-6 && (model.bandwidth / 1e9 - 1.0).abs() < 1e-6,
            "{model:?}"
        );
        // One run that communicates, or none that waits, says nothing.
        for measured in [&[][..], &[(2.0, 1e6, 1e-3)], &[(0.0, 0.0, 0.0), (2.0, 1e6, 1e-3)]] {
            assert_eq!(communication(measured), None);
        }
        assert_eq!(communication(&[(2.0, 1e6, 0.0), (6.0, 1e6, 0.0)]), None);
    }
}
