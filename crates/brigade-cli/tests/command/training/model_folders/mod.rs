//! Models in the folders that Hugging Face's libraries read and write.

mod adapters;
mod chats;
mod folders;
mod shards;
mod weights;
