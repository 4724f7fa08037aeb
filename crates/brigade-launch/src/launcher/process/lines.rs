//! Whole lines out of a stream of bytes, as they belong in a log.

/// The longest line that is kept together, in bytes.
const MAX_LINE: usize = 64 << 10;

/// Collects bytes and gives out whole lines. What a carriage return overwrote (the earlier states of a
/// progress bar) and escape sequences (colours, cursor movements) are left out; a line longer than 64 KiB is
/// cut.
#[derive(Default)]
pub struct Lines {
    pending: Vec<u8>,
}

impl Lines {
    /// Takes in bytes and calls `emit` for each line that they complete, without its newline.
    pub fn push(&mut self, bytes: &[u8], emit: &mut impl FnMut(&[u8])) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.pending.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                self.pending.pop();
                emit(&visible(&self.pending));
                self.pending.clear();
            } else if self.pending.len() > MAX_LINE {
                // The last state of a progress bar may still get its newline.
                match self.pending.iter().rposition(|byte| *byte == b'\r') {
                    Some(at) if self.pending.len() - at <= MAX_LINE => drop(self.pending.drain(..at)),
                    _ => self.finish(emit),
                }
            }
        }
    }

    /// Gives out what has no newline yet.
    pub fn finish(&mut self, emit: &mut impl FnMut(&[u8])) {
        let line = visible(&self.pending);
        self.pending.clear();
        if !line.is_empty() {
            emit(&line);
        }
    }
}

/// The part of a line that is still visible at its end.
fn visible(line: &[u8]) -> Vec<u8> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let from = line.iter().rposition(|byte| *byte == b'\r').map_or(0, |at| at + 1);
    let mut rest = &line[from..];
    let mut shown = Vec::with_capacity(rest.len());
    while let Some((&byte, after)) = rest.split_first() {
        if byte == 0x1b {
            rest = after_escape(after);
        } else {
            shown.push(byte);
            rest = after;
        }
    }
    shown
}

/// Skips the rest of an escape sequence: `[` parameters and a final byte, `]` text up to BEL or ESC `\`, or
/// one byte.
fn after_escape(rest: &[u8]) -> &[u8] {
    let end = match rest.first() {
        Some(b'[') => rest[1..].iter().position(|b| (0x40..=0x7e).contains(b)).map(|at| at + 2),
        Some(b']') => match rest.iter().position(|b| matches!(b, 0x07 | 0x1b)) {
            Some(at) if rest[at] == 0x1b => Some(at + 2),
            end => end.map(|at| at + 1),
        },
        Some(_) => Some(1),
        None => None,
    };
    &rest[end.unwrap_or(rest.len()).min(rest.len())..]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(chunks: &[&[u8]]) -> Vec<String> {
        let (mut lines, mut out) = (Lines::default(), vec![]);
        let mut emit = |line: &[u8]| out.push(String::from_utf8_lossy(line).into_owned());
        for chunk in chunks {
            lines.push(chunk, &mut emit);
        }
        lines.finish(&mut emit);
        out
    }

    #[test]
    fn joins_and_splits() {
        assert_eq!(lines(&[b"a", b"b\nc\r\n\nd"]), ["ab", "c", "", "d"]);
        assert!(lines(&[b""]).is_empty());
    }

    #[test]
    fn leaves_out_redrawn_bars_and_escapes() {
        assert_eq!(lines(&[b"\r\x1b[2Kstep 1\r\x1b[2Kstep 2\r\x1b[2K\x1b[31mdone\x1b[0m\nx"]), ["done", "x"]);
        assert_eq!(lines(&[b"\x1b]0;title\x07a\x1b]8;;u\x1b\\b\x1b(c\x1b[\n"]), ["abc"]);
        assert!(lines(&[b"bar\r\x1b[2K"]).is_empty());
    }

    #[test]
    fn memory_is_bounded() {
        let long = vec![b'x'; 3 * MAX_LINE];
        assert!(lines(&[&long]).len() == 1);
        let mut collector = Lines::default();
        for _ in 0..100_000 {
            collector.push(b"\rprogress", &mut |_| panic!("no line"));
            assert!(collector.pending.len() <= MAX_LINE + 16);
        }
    }
}
