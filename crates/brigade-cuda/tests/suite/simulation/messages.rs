//! Messages between stages, as `tensors::messages` and core's interpreter pass them.

use brigade_comm::{DType, OpType};
use brigade_plan::{Pass, StageTask};

use super::memory_pool::Buffer;
use super::mesh::{RECEIVER, SENDER};
use super::step::{Checked, Key, Step, text};

/// As in the interpreter.
const MAX_SENDS: usize = 2;

impl Step<'_> {
    pub fn send(&mut self, pass: Pass, task: StageTask, to: usize) -> Result<(), String> {
        let place = self.stage.virtual_stage(task.chunk);
        let place = if pass == Pass::Forward { place + 1 } else { place - 1 };
        let message = self.outgoing.remove(&(pass, place, task.micro_batch)).unwrap();
        while self.sent.len() >= MAX_SENDS {
            let (description, work) = self.sent.pop_front().unwrap();
            description.wait().map_err(text)?;
            work.wait().map_err(text)?;
        }
        let buffers: Vec<Buffer> = message.into_iter().map(|(buffer, _)| buffer).collect();
        let places: Vec<_> = buffers.iter().map(|buffer| buffer.place()).collect();
        let sizes =
            places.iter().flat_map(|place| (place.elements() as u32).to_le_bytes()).collect::<Vec<u8>>();
        let description = self.sim.pp_group.send(sizes, DType::U8, to);
        // The other rank may enqueue its receive before this one enqueues its send.
        self.random_delay();
        let bytes = places.iter().map(|place| place.bytes()).sum();
        let comm_stream = &self.sim.out[&to];
        let started = comm_stream.start(OpType::Send, (DType::U8, bytes), Box::new(buffers), |call| {
            for place in &places {
                // SAFETY: it is held until the operation is done.
                unsafe { call.send(place.address(), place.bytes(), DType::U8, RECEIVER) };
            }
        });
        self.sent.push_back((description, started.map_err(text)?));
        if self.plan.sends_block {
            self.all_sent()?;
        }
        Ok(())
    }

    /// Waits for all sends.
    pub fn all_sent(&mut self) -> Result<(), String> {
        for (description, work) in std::mem::take(&mut self.sent) {
            description.wait().map_err(text)?;
            work.wait().map_err(text)?;
        }
        Ok(())
    }

    pub fn receive(&mut self, pass: Pass, task: StageTask, from: usize) {
        let (comm_stream, receive_queue) = &self.sim.receive_queues[&from];
        let (comm_stream, pool, compute) =
            (comm_stream.clone(), self.sim.pool.clone(), self.sim.compute.clone());
        let posted = receive_queue.post(move |description| {
            let sizes = description.map_err(text)?;
            let size = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap()) as usize;
            let buffers: Vec<_> = sizes.chunks(4).map(|bytes| pool.allocate(size(bytes), &compute)).collect();
            let places: Vec<_> = buffers.iter().map(|buffer| buffer.place()).collect();
            let bytes = places.iter().map(|place| place.bytes()).sum();
            let started =
                comm_stream.start(OpType::Recv, (DType::U8, bytes), Box::new(buffers.clone()), |call| {
                    for place in &places {
                        // SAFETY: it is held until the operation is done.
                        unsafe { call.recv(place.address(), place.bytes(), DType::U8, SENDER) };
                    }
                });
            Ok((buffers, started.map_err(text)?))
        });
        let key = (pass, self.stage.virtual_stage(task.chunk), task.micro_batch);
        self.posted.insert(key, Box::new(posted));
    }

    /// The input of an action, from another stage or another chunk of this rank.
    pub fn incoming(&mut self, key: Key) -> Result<Vec<Checked>, String> {
        if let Some(message) = self.outgoing.remove(&key) {
            return Ok(message);
        }
        let (pass, place, micro_batch) = key;
        let (buffers, work) = self.posted.remove(&key).unwrap()().map_err(text)??;
        work.synchronize().map_err(text)?;
        let task = StageTask { chunk: place / self.stage.stages, micro_batch };
        let blocks = self.stage.blocks(task.chunk);
        let numbers = |part| match pass {
            Pass::Forward => self.activation(blocks.start, part, task),
            Pass::Backward => self.upstream(blocks.end, task),
        };
        Ok(buffers.into_iter().enumerate().map(|(part, buffer)| (buffer, numbers(part))).collect())
    }
}
