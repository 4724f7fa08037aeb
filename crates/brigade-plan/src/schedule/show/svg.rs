//! Schedules as pictures.

use std::fmt::Write;

use crate::schedule::simulate::{SimulatedSpan, SimulatedTimeline};
use crate::schedule::{Action, Pipeline, ScheduleError};

/// Lengths in pixels.
const LANE: f64 = 30.0;
const GAP: f64 = 6.0;
const LEFT: f64 = 70.0;
const TOP: f64 = 84.0;
const RIGHT: f64 = 24.0;
const BOTTOM: f64 = 52.0;
const LETTER: f64 = 6.8;
/// One forward is at least this wide, except in a picture that would become wider than [`WIDEST`].
const UNIT: f64 = 14.0;
const WIDEST: f64 = 8000.0;
/// Room for the title and the legend.
const NARROWEST: f64 = 760.0;

/// From chunk 0 to the last.
type Colors = [[u8; 3]; 2];
const FORWARD: Colors = [[0x1f, 0x5f, 0xb4], [0xa6, 0xc8, 0xf0]];
const BACKWARD: Colors = [[0xb8, 0x50, 0x0a], [0xf6, 0xc4, 0x94]];
const WEIGHTS: Colors = [[0x2a, 0x7a, 0x46], [0xa8, 0xdc, 0xb8]];

impl Pipeline {
    /// The timeline as an SVG: one lane a rank, an axis in units of one forward of one chunk, every
    /// computing action with its micro-batch, in a shade that tells its chunk. Pointing at an action
    /// names it in full.
    ///
    /// # Errors
    /// Where the ratio is not from 0.001 to 1000.
    pub fn svg(&self, backward_ratio: f64) -> Result<String, ScheduleError> {
        let timeline = self.timeline(backward_ratio)?;
        let picture = Picture::new(self, &timeline);
        let mut svg = String::new();
        let Picture { width, height, .. } = picture;
        let _ = writeln!(
            svg,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
             viewBox=\"0 0 {width:.0} {height:.0}\" \
             font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\" \
             fill=\"#222222\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>"
        );
        let title = self.summary(backward_ratio)?;
        let _ = writeln!(svg, "<text x=\"12\" y=\"24\" font-size=\"15\">{title}</text>");
        picture.legend(&mut svg);
        picture.axis(&mut svg);
        for (rank, spans) in timeline.ranks.iter().enumerate() {
            picture.lane(&mut svg, rank, spans);
        }
        svg.push_str("</svg>\n");
        Ok(svg)
    }
}

struct Picture {
    chunks: usize,
    /// In units of one forward.
    length: f64,
    /// Pixels of one forward.
    unit: f64,
    lanes: usize,
    split: bool,
    width: f64,
    height: f64,
}

impl Picture {
    fn new(pipeline: &Pipeline, timeline: &SimulatedTimeline) -> Self {
        let length = timeline.length();
        let spans = || timeline.ranks.iter().flatten();
        // Wide enough for the longest text in the shortest action.
        let text = pipeline.micro_batches.saturating_sub(1).to_string().len() as f64 * LETTER + 4.0;
        let shortest = spans().map(|span| span.end - span.start).fold(1.0, f64::min);
        let unit = UNIT.max(text / shortest).min(WIDEST / length.max(1.0));
        Self {
            chunks: pipeline.chunks,
            length,
            unit,
            lanes: pipeline.stages,
            split: spans().any(|span| matches!(span.action, Action::BackwardWeights(_))),
            width: (LEFT + length * unit + RIGHT).max(NARROWEST),
            height: TOP + pipeline.stages as f64 * (LANE + GAP) + BOTTOM,
        }
    }

    fn x(&self, time: f64) -> f64 {
        LEFT + time * self.unit
    }

    fn lanes_end(&self) -> f64 {
        TOP + self.lanes as f64 * (LANE + GAP)
    }

    fn legend(&self, svg: &mut String) {
        let mut kinds = vec![("forward", FORWARD), ("backward", BACKWARD)];
        if self.split {
            kinds.push(("weights' half", WEIGHTS));
        }
        let mut x = 12.0;
        for (name, colors) in kinds {
            // The shades run from the first chunk to the last.
            let shown = self.chunks.clamp(1, 8);
            for swatch in 0..shown {
                let color = hex(shade(colors, swatch, shown));
                let _ = writeln!(
                    svg,
                    "<rect x=\"{x:.1}\" y=\"40\" width=\"14\" height=\"14\" fill=\"{color}\"/>"
                );
                x += 14.0;
            }
            let chunks = match self.chunks {
                0 | 1 => String::new(),
                chunks => format!(", chunk 0 to {}", chunks - 1),
            };
            let text = format!("{name}{chunks}");
            let _ = writeln!(svg, "<text x=\"{:.1}\" y=\"51\">{text}</text>", x + 6.0);
            x += 30.0 + text.len() as f64 * LETTER;
        }
        let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"51\" fill=\"#666666\">numbers: micro-batches</text>");
    }

    fn axis(&self, svg: &mut String) {
        let (start, end) = (TOP - GAP, self.lanes_end());
        let step = tick(40.0 / self.unit);
        let mut time = 0.0;
        while time <= self.length {
            let x = self.x(time);
            let _ = writeln!(
                svg,
                "<line x1=\"{x:.1}\" y1=\"{start:.1}\" x2=\"{x:.1}\" y2=\"{end:.1}\" stroke=\"#dddddd\"/>\n\
                 <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{time}</text>",
                end + 16.0
            );
            time += step;
        }
        let _ = writeln!(
            svg,
            "<text x=\"{LEFT:.1}\" y=\"{:.1}\" fill=\"#666666\">time, in forwards of one chunk</text>",
            end + 36.0
        );
    }

    fn lane(&self, svg: &mut String, rank: usize, spans: &[SimulatedSpan]) {
        let y = TOP + rank as f64 * (LANE + GAP);
        let middle = y + LANE / 2.0 + 4.0;
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{middle:.1}\" text-anchor=\"end\">rank {rank}</text>",
            LEFT - 8.0
        );
        for span in spans {
            let SimulatedSpan { action, start, end } = *span;
            let (from, to) = (thousandths(start), thousandths(end));
            let (task, colors) = match action {
                Action::Forward(task) => (task, FORWARD),
                Action::Backward(task) | Action::BackwardInput(task) => (task, BACKWARD),
                Action::BackwardWeights(task) => (task, WEIGHTS),
                Action::Send { .. } | Action::Receive { .. } | Action::Reduce { .. } => continue,
            };
            let color = shade(colors, task.chunk, self.chunks);
            let (x, width) = (self.x(start), (end - start) * self.unit);
            let _ = writeln!(
                svg,
                "<g><title>rank {rank}: {action}, {from} to {to}</title><rect x=\"{x:.1}\" y=\"{y:.1}\" \
                 width=\"{width:.1}\" height=\"{LANE}\" fill=\"{}\" stroke=\"#ffffff\"/>",
                hex(color)
            );
            let text = task.micro_batch.to_string();
            if text.len() as f64 * LETTER <= width {
                let _ = writeln!(
                    svg,
                    "<text x=\"{:.1}\" y=\"{middle:.1}\" text-anchor=\"middle\" fill=\"{}\">{text}</text>",
                    x + width / 2.0,
                    if is_dark(color) { "#ffffff" } else { "#222222" }
                );
            }
            svg.push_str("</g>\n");
        }
    }
}

fn thousandths(time: f64) -> f64 {
    (time * 1000.0).round() / 1000.0
}

/// Between the colors of the first and of the last chunk.
fn shade([first, last]: Colors, chunk: usize, chunks: usize) -> [u8; 3] {
    let part = chunk as f64 / (chunks.max(2) - 1) as f64;
    std::array::from_fn(|i| {
        (f64::from(first[i]) + part * (f64::from(last[i]) - f64::from(first[i]))).round() as u8
    })
}

/// Dark enough for white text: relative luminance with the weights of ITU-R BT.601.
fn is_dark([red, green, blue]: [u8; 3]) -> bool {
    0.299 * f64::from(red) + 0.587 * f64::from(green) + 0.114 * f64::from(blue) < 140.0
}

fn hex([red, green, blue]: [u8; 3]) -> String {
    format!("#{red:02x}{green:02x}{blue:02x}")
}

/// The least of 1, 2, 5, 10, 20, 50, … that is not below `least`.
fn tick(least: f64) -> f64 {
    let mut power = 1.0;
    loop {
        for factor in [1.0, 2.0, 5.0] {
            if factor * power >= least {
                return factor * power;
            }
        }
        power *= 10.0;
    }
}
