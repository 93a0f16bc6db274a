//! The level of the log: what `log.level` may say, and how a running process changes it.

use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::{EnvFilter, Registry, reload};

/// Which lines there are, by `log.level`: a level, or `room=level` pairs with commas. Rooms that no pair names are logged by the
/// level that stands alone, and if none does, their errors are.
///
/// # Errors
///
/// When a part is neither a level nor such a pair. `EnvFilter` itself takes any word for a room, and a level with a slip in it
/// would switch the log off.
pub fn filter(level: &str) -> Result<EnvFilter, String> {
    let (mut parts, mut alone) = (Vec::new(), false);
    for part in level.split(',').map(str::trim) {
        let (room, own) = part.split_once('=').map_or((None, part), |(room, own)| (Some(room), own));
        let named = |room: &str| {
            !room.is_empty() && room.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_:-".contains(&byte))
        };
        // Nothing at all would be the level "error".
        if own.is_empty() || own.parse::<LevelFilter>().is_err() || room.is_some_and(|room| !named(room)) {
            return Err(format!(
                "{part:?} is neither a level (off, error, warn, info, debug, trace) nor a pair as slipway::dhcp=debug"
            ));
        }
        alone |= room.is_none();
        parts.push(part);
    }
    if !alone {
        parts.push("error");
    }
    EnvFilter::try_new(parts.join(",")).map_err(|error| error.to_string())
}

/// Changes the level of a running log.
#[derive(Clone, Debug)]
pub struct LevelHandle(reload::Handle<EnvFilter, Registry>);

impl LevelHandle {
    /// From now on these lines are logged.
    ///
    /// # Errors
    ///
    /// As for [`filter`], and when there is no log any more.
    pub fn set(&self, level: &str) -> Result<(), String> {
        self.0.reload(filter(level)?).map_err(|error| error.to_string())
    }
}

/// The filter as a log takes it, and what changes it.
pub fn adjustable(filter: EnvFilter) -> (reload::Layer<EnvFilter, Registry>, LevelHandle) {
    let (layer, handle) = reload::Layer::new(filter);
    (layer, LevelHandle(handle))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_with_a_slip_is_refused_and_no_other_room_goes_silent() {
        for (level, shown) in [
            ("info", Some("info")),
            ("WARN", Some("warn")),
            ("off", Some("off")),
            ("info,slipway::dhcp=debug", Some("slipway::dhcp=debug,info")),
            ("slipway::dhcp=debug", Some("slipway::dhcp=debug,error")),
            ("off, slipway::bmc=trace", Some("slipway::bmc=trace,off")),
            ("chatty", None),
            ("info,slipway::dhcp", None),
            ("slipway::dhcp=chatty", None),
            ("info,,", None),
            ("", None),
            ("=debug", None),
            ("a[b]=info", None),
        ] {
            assert_eq!(filter(level).ok().map(|filter| filter.to_string()).as_deref(), shown, "{level}");
        }
    }
}
