//! The power button: what a BMC presses for a graceful shutdown (ACPI), seen through evdev.

use std::collections::HashSet;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

/// Size of an `input_event` on 64-bit kernels: two longs of time, type, code, value.
const EVENT: usize = 24;
/// EV_KEY and KEY_POWER of `linux/input-event-codes.h`.
const KEY: u16 = 1;
const POWER: u16 = 116;
/// How often is looked for buttons whose driver comes late.
const LOOK: Duration = Duration::from_secs(2);

/// Cancels `pressed` when the power button is pressed. Looks for buttons for as long as the process lives.
pub async fn watch(root: PathBuf, pressed: CancellationToken) {
    let mut known = HashSet::new();
    loop {
        for path in buttons(&root) {
            if known.insert(path.clone()) {
                listen(path, pressed.clone());
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Devices below `dev/input` that are power buttons.
fn buttons(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(root.join("sys/class/input")).into_iter().flatten().flatten() {
        let name = std::fs::read_to_string(entry.path().join("device/name")).unwrap_or_default();
        if entry.file_name().to_string_lossy().starts_with("event") && name.trim() == "Power Button" {
            found.push(root.join("dev/input").join(entry.file_name()));
        }
    }
    found
}

fn listen(path: PathBuf, pressed: CancellationToken) {
    // A blocking read for ever: not on the runtime's threads, whose end is waited for.
    let spawned = std::thread::Builder::new().name("button".into()).stack_size(64 << 10).spawn(move || {
        let Ok(mut file) = File::open(&path) else { return };
        let mut event = [0; EVENT];
        while file.read_exact(&mut event).is_ok() {
            if is_press(&event) {
                pressed.cancel();
            }
        }
    });
    if let Err(error) = spawned {
        tracing::warn!(%error, "cannot listen to the power button: pressing it does nothing");
    }
}

fn is_press(event: &[u8; EVENT]) -> bool {
    let word = |at: usize| u16::from_ne_bytes([event[at], event[at + 1]]);
    word(16) == KEY && word(18) == POWER && event[20..24] == 1i32.to_ne_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn event(kind: u16, code: u16, value: i32) -> [u8; EVENT] {
        let mut bytes = [0xaa; EVENT];
        bytes[16..18].copy_from_slice(&kind.to_ne_bytes());
        bytes[18..20].copy_from_slice(&code.to_ne_bytes());
        bytes[20..24].copy_from_slice(&value.to_ne_bytes());
        bytes
    }

    #[tokio::test]
    async fn only_the_press_of_a_power_button_counts() {
        assert!(!is_press(&event(KEY, POWER, 0)) && !is_press(&event(KEY, 30, 1)) && !is_press(&event(4, POWER, 1)));
        let root = tempfile::tempdir().unwrap();
        for (name, kind) in [("event0", "AT Keyboard"), ("event1", "Power Button"), ("input1", "Power Button")] {
            fs::create_dir_all(root.path().join("sys/class/input").join(name).join("device")).unwrap();
            fs::write(root.path().join("sys/class/input").join(name).join("device/name"), format!("{kind}\n")).unwrap();
        }
        fs::create_dir_all(root.path().join("dev/input")).unwrap();
        assert_eq!(buttons(root.path()), [root.path().join("dev/input/event1")]);
        let events = [event(KEY, 30, 1), event(KEY, POWER, 1), event(0, 0, 0)].concat();
        fs::write(root.path().join("dev/input/event1"), events).unwrap();
        let pressed = CancellationToken::new();
        let watching = tokio::spawn(watch(root.path().to_owned(), pressed.clone()));
        tokio::time::timeout(Duration::from_secs(30), pressed.cancelled()).await.expect("the press is seen");
        watching.abort();
    }
}
