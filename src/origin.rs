//! Of which source this program was built, as far as its build knew (`build.rs`).

use jiff::Timestamp;

/// Its version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The commit, in hex; none where the source was no commit, or nobody said which.
pub const COMMIT: Option<&str> = option_env!("SLIPWAY_BUILD_COMMIT");
/// Of when the source is: the time of the commit, or what `SOURCE_DATE_EPOCH` said. The same source has the same time, whenever
/// it is built.
pub fn time() -> Option<Timestamp> {
    let seconds = option_env!("SLIPWAY_BUILD_TIME")?.parse().ok()?;
    Timestamp::from_second(seconds).ok()
}

/// Where its source is kept, if `Cargo.toml` says so.
pub fn repository() -> Option<&'static str> {
    Some(env!("CARGO_PKG_REPOSITORY")).filter(|url| !url.is_empty())
}
