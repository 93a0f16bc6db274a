//! Reading databases of format 1.
//!
//! Databases of format 1, as versions before base and journal left them: all entries in trees of sled, whose files lie in
//! the folder of the database itself. They are read, and taken over into a base.

use std::path::Path;

use bytes::Bytes;

use super::content::StoreContent;
use super::files::{OpenRefusal, open_sled, sync_data};
use super::group::{META, TreeName};
use super::record::number;
use super::repair;

const FORMAT: u64 = 1;

/// Reads all of it. The files are closed when this returns.
pub(super) fn read(path: &Path) -> Result<StoreContent, OpenRefusal> {
    repair::sweep(path).map_err(|error| OpenRefusal::io("clean up after a crash", &error))?;
    let unreadable = |error: sled::Error| format!("cannot read the database: {error}");
    sync_data(path).map_err(|error| OpenRefusal::io("sync the data file", &error))?;
    let db = open_sled(path)?;
    let meta = db.open_tree(META).map_err(unreadable)?;
    match meta.get("format").map_err(unreadable)? {
        None => return Err("it has no format".into()),
        Some(bytes) => match number(&bytes) {
            Some(FORMAT) => {}
            Some(other) => {
                return Err(OpenRefusal::Other(format!("its format is {other}, of another version; use that one")));
            }
            None => return Err("its format is not a number".into()),
        },
    }
    let mut content = StoreContent::default();
    for name in db.tree_names() {
        let Some(tree) = std::str::from_utf8(&name).ok().filter(|name| TreeName::parse(name).is_some()) else {
            continue;
        };
        for entry in &db.open_tree(tree).map_err(unreadable)? {
            let (key, value) = entry.map_err(unreadable)?;
            if tree != META || key != b"format" {
                content.put(tree, key.to_vec(), Some(Bytes::copy_from_slice(&value)))?;
            }
        }
    }
    Ok(content)
}
