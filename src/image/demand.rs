//! Image demand: who wants an image.

use tokio::sync::Notify;

pub use super::turns::ImageRequester;
use crate::api::slipway::Image;

/// Who wants an image, and how much.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Whose import it is; at least one.
    pub requesters: Vec<ImageRequester>,
    /// Namespaces with hosts that name it.
    pub namespaces: Vec<String>,
    /// Hosts that name it.
    pub hosts: usize,
    /// Of these, those that are not provisioned.
    pub unfinished: usize,
}

/// Knows who wants which image. It must not believe what a user may write on the Image.
pub trait Demands: Send + Sync {
    /// Who wants it now.
    fn of(&self, image: &Image) -> Demand;

    /// Whether all who may want an image are known; before, nobody wants some that somebody does.
    fn complete(&self) -> bool;

    /// Told when the answer may be another.
    fn changed(&self) -> &Notify;
}
