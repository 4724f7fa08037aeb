//! Reading objects in blocks, some of which are asked for before they are needed.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};

use tokio::task::JoinHandle;

use crate::{Error, Object, Result};

/// Objects are asked for in blocks of this many bytes.
const BLOCK: u64 = 1 << 20;

/// At most this many blocks are asked for ahead of the one that is read.
const AHEAD: u64 = 8;

/// At most this many are held.
const MAX_BLOCKS: usize = 24;

/// Reads one object, forwards or at any offset. What is read in order is asked for ahead of time: the longer, the further. It holds 24 MiB at most.
pub struct Reader {
    object: Object,
    /// Where the next byte to be read is.
    position: u64,
    /// Nothing is asked for ahead from here on.
    until: u64,
    blocks: BTreeMap<u64, Block>,
    /// Counts uses of blocks.
    clock: u64,
}

struct Block {
    content: Content,
    used: u64,
    /// How many blocks before this one were used in order.
    run: u64,
}

enum Content {
    Coming(Receiver<Result<Vec<u8>>>, JoinHandle<()>),
    There(Arc<Vec<u8>>),
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Content::Coming(_, task) = &self.content {
            task.abort();
        }
    }
}

impl Object {
    /// A reader at byte `start`. Before it gets to `until`, nothing from there on is asked for.
    pub fn reader(&self, start: u64, until: u64) -> Reader {
        Reader {
            object: self.clone(),
            position: start,
            until: until.min(self.size()),
            blocks: BTreeMap::new(),
            clock: 0,
        }
    }
}

/// The bytes of a range of the object.
///
/// # Errors
/// As reading does, and where the range is not within the object.
pub fn read_at(reader: &mut Reader, range: Range<u64>) -> Result<Vec<u8>> {
    if range.end > reader.object.size() || range.start > range.end {
        let size = reader.object.size();
        return Err(reader.object.failed(format!("bytes {range:?} are not among its {size}")));
    }
    let mut bytes = Vec::with_capacity((range.end - range.start) as usize);
    let mut position = range.start;
    while position < range.end {
        let block = position / BLOCK;
        // All blocks of the range are asked for at once, as far as they may be held.
        let last = ((range.end - 1) / BLOCK).min(block + AHEAD);
        (block..=last).for_each(|number| reader.request(number, 0));
        let content = reader.block(block)?;
        let from = (position - block * BLOCK) as usize;
        let to = content.len().min((range.end - block * BLOCK) as usize);
        bytes.extend_from_slice(&content[from..to]);
        position = block * BLOCK + to as u64;
    }
    Ok(bytes)
}

impl Reader {
    /// Goes to another place.
    pub fn seek(&mut self, position: u64) {
        self.position = position;
    }

    /// Asks for a block, if it is not there or coming.
    fn request(&mut self, number: u64, run: u64) {
        let range = number * BLOCK..self.object.size().min((number + 1) * BLOCK);
        if range.start >= range.end || self.blocks.contains_key(&number) {
            return;
        }
        let (sender, receiver) = sync_channel(1);
        let object = self.object.clone();
        let task = self.object.client.handle().spawn(async move {
            // Nobody may wait for it any more.
            let _ = sender.send(object.fetch(range).await);
        });
        self.blocks.insert(number, Block { content: Content::Coming(receiver, task), used: self.clock, run });
    }

    /// The content of a block; those that follow are asked for if it comes after one that was used.
    fn block(&mut self, number: u64) -> Result<Arc<Vec<u8>>> {
        self.clock += 1;
        let before = number.checked_sub(1).and_then(|before| self.blocks.get(&before));
        let run = before.map_or(0, |before| before.run + 1);
        self.request(number, run);
        for next in number + 1..=number + (2 * run).min(AHEAD) {
            if next * BLOCK < self.until {
                self.request(next, 0);
            }
        }
        let clock = self.clock;
        let Some(block) = self.blocks.get_mut(&number) else {
            return Err(self.object.failed(format!("there is no byte {}", number * BLOCK)));
        };
        (block.used, block.run) = (clock, run);
        if let Content::Coming(coming, _) = &block.content {
            // The request ends by itself: each of its waits has this deadline, or twice it.
            let longest = self.object.client.deadline() * PATIENCE;
            let content = coming.recv_timeout(longest).unwrap_or_else(|error| {
                Err(match error {
                    RecvTimeoutError::Timeout => {
                        self.object.unanswered(format!("it took more than {} s", longest.as_secs()))
                    }
                    RecvTimeoutError::Disconnected => self.object.failed("the request was dropped".into()),
                })
            });
            match content {
                Ok(content) => block.content = Content::There(Arc::new(content)),
                Err(error) => {
                    self.blocks.remove(&number);
                    return Err(error);
                }
            }
        }
        let Content::There(content) = &block.content else {
            return Err(self.object.failed("the request was dropped".into()));
        };
        let content = Arc::clone(content);
        self.forget();
        Ok(content)
    }

    /// Drops the blocks that were not used for longest.
    fn forget(&mut self) {
        while self.blocks.len() > MAX_BLOCKS {
            let oldest = self.blocks.iter().min_by_key(|(_, block)| block.used).map(|(number, _)| *number);
            oldest.and_then(|number| self.blocks.remove(&number));
        }
    }
}

/// A block that comes slowly, but comes, may take this many times the deadline.
const PATIENCE: u32 = 100;

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.position >= self.object.size() || buffer.is_empty() {
            return Ok(0);
        }
        let block = self.position / BLOCK;
        let content = self.block(block).map_err(io::Error::from)?;
        let from = (self.position - block * BLOCK) as usize;
        let count = buffer.len().min(content.len() - from);
        buffer[..count].copy_from_slice(&content[from..from + count]);
        self.position += count as u64;
        Ok(count)
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        Self::other(error)
    }
}
