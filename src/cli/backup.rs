//! `slipway backup`: fetches the text of a backup from the appliance, checks it, packs and encrypts it here.

use std::io::{self, BufReader, BufWriter, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use futures::TryStreamExt;
use http::Request;
use jiff::Timestamp;
use kube::client::Body;
use kube::core::Status;
use secrecy::ExposeSecret;
use tokio_util::compat::FuturesAsyncReadCompatExt;
use tokio_util::io::SyncIoBridge;

use super::client::ServerArgs;
use super::failure::usage;
use super::progress::ProgressLine;
use super::{local, secret};
use crate::appliance;
use crate::backup::format::{self, Header, ReadError};
use crate::backup::seal::{self, Seal, Sealing};
use crate::backup::take::{BackupSource, NewFile};
use crate::backup::{page, restore};
use crate::cli::form::ProgramForm;
use crate::config::Config;
use crate::store::Store;

/// What is shown while it lasts.
const TAKING: &str = "taking the backup";

#[derive(clap::Args)]
#[command(after_help = "\
Encrypt with a passphrase, which the command asks for:
  slipway backup
Encrypt for a key, whose secret half can stay off the appliance:
  slipway backup --new-key backup.key
  slipway backup --recipient age1... /mnt/usb/slipway.jsonl.zst.age
Read a backup without Slipway:
  age -d -i backup.key FILE | zstd -d | less")]
pub(super) struct BackupArgs {
    /// File to write, which must not exist; - is standard output [default: slipway-TIME.jsonl.zst.age]
    file: Option<PathBuf>,
    /// Encrypt for the owner of this age public key; may be given more than once
    #[arg(long, value_name = "age1...")]
    recipient: Vec<String>,
    /// Encrypt for the keys in this file, as made by --new-key or age-keygen
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Encrypt with the passphrase on this file's first line; - reads standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["recipient", "key_file"])]
    passphrase_file: Option<PathBuf>,
    /// Do not encrypt: whoever can read the file has every key and every secret
    #[arg(long, conflicts_with_all = ["recipient", "key_file", "passphrase_file"])]
    unencrypted: bool,
    /// Read the data folder directly, of an appliance that is not running
    #[arg(long)]
    offline: bool,
    /// Only make a key for backups, and print its public half
    #[arg(long, value_name = "FILE", conflicts_with_all = ["file", "recipient", "key_file", "passphrase_file", "unencrypted", "offline"])]
    new_key: Option<PathBuf>,
    /// Print what was written as JSON
    #[arg(long, short, value_enum, value_name = "FORM", conflicts_with = "new_key")]
    output: Option<ProgramForm>,
    #[command(flatten)]
    server: ServerArgs,
}

pub(super) fn run(options: BackupArgs) -> anyhow::Result<()> {
    if let Some(file) = &options.new_key {
        return new_key(file);
    }
    let to_stdout = options.file.as_deref() == Some(Path::new("-"));
    if to_stdout && options.output.is_some() {
        return Err(usage("standard output is for the backup: name a file with -o json"));
    }
    if to_stdout && io::stdout().is_terminal() {
        return Err(usage("a backup is not printed on a terminal: name a file, or write to a pipe"));
    }
    let seal = seal_of(&options)?;
    let path = match &options.file {
        Some(path) => path.clone(),
        None => format!("slipway-{}.{}", Timestamp::now().strftime("%Y%m%dT%H%M%SZ"), seal.extension()).into(),
    };
    let header = if to_stdout {
        let sealing = Sealing::new(BufWriter::new(io::stdout()), &seal)?;
        let (header, sealing) = fetch(&options, sealing)?;
        sealing.finish()?.flush()?;
        header
    } else {
        // Before anything is asked of the appliance: a file that is there already is said at once.
        let what = || format!("cannot write {}", path.display());
        let sealing = Sealing::new(BufWriter::new(NewFile::create(&path)?), &seal).with_context(what)?;
        let (header, sealing) = fetch(&options, sealing)?;
        let out = sealing.finish().with_context(what)?;
        out.into_inner().map_err(io::IntoInnerError::into_error).with_context(what)?.keep()?;
        header
    };
    let what = if to_stdout { "standard output".into() } else { path.display().to_string() };
    if options.output.is_some() {
        let outcome = serde_json::json!({ "file": what, "objects": header.objects, "revision": header.revision,
            "time": header.time, "encrypted": !options.unencrypted });
        println!("{}", serde_json::to_string_pretty(&outcome)?);
        return Ok(());
    }
    eprintln!("{what}: {} objects at revision {} of {:.0}", header.objects, header.revision, header.time);
    if options.unencrypted {
        eprintln!("it is not encrypted: whoever gets it has the CA's key and every secret");
    }
    Ok(())
}

fn new_key(file: &Path) -> anyhow::Result<()> {
    let (recipient, text) = seal::new_key(Timestamp::now());
    let mut out = NewFile::create(file)?;
    out.write_all(text.expose_secret().as_bytes())?;
    out.keep()?;
    println!("{recipient}");
    eprintln!("the secret half is in {}: without it no backup that is made for it can be read", file.display());
    Ok(())
}

fn seal_of(options: &BackupArgs) -> anyhow::Result<Seal> {
    if options.unencrypted {
        return Ok(Seal::Nobody);
    }
    if let Some(file) = &options.passphrase_file {
        return Ok(Seal::Passphrase(seal::strong(seal::passphrase_of(file)?)?));
    }
    let mut keys = options.recipient.iter().map(|text| seal::recipient(text)).collect::<Result<Vec<_>, _>>()?;
    if let Some(file) = &options.key_file {
        keys.extend(seal::recipients_of(file)?);
    }
    if !keys.is_empty() {
        return Ok(Seal::Recipients(keys));
    }
    let instead = "give --recipient, --key-file or --passphrase-file";
    let passphrase = seal::strong(secret::ask("Passphrase of the backup", instead)?)?;
    let again = secret::ask("Once more", instead)?;
    if passphrase.expose_secret() != again.expose_secret() {
        bail!("the two passphrases differ");
    }
    Ok(Seal::Passphrase(passphrase))
}

/// Writes the text of a backup that is whole; else nothing may come of what was written.
fn fetch<W: Write + Send + 'static>(options: &BackupArgs, out: W) -> anyhow::Result<(Header, W)> {
    if options.offline {
        return offline(options.server.config_file(), out);
    }
    let server = options.server.clone();
    local::block_on(async move {
        let session = server.connect().await?;
        let request = Request::get(page::PATH).body(Body::empty())?;
        let answer = match session.client.send(request).await {
            Err(kube::Error::Api(status)) => bail!(refusal(&status)),
            answer => answer.map_err(|error| anyhow::anyhow!(session.unreachable(&error)))?,
        };
        if !answer.status().is_success() {
            let code = answer.status().as_u16();
            let body = answer.into_body().collect_bytes().await.unwrap_or_default();
            let unread = Status { code, message: "it gives no reason".into(), ..Status::default() };
            bail!(refusal(&serde_json::from_slice(&body).unwrap_or(unread)));
        }
        let body = futures::TryStreamExt::into_async_read(
            http_body_util::BodyDataStream::new(answer.into_body()).map_err(io::Error::other),
        );
        let input = SyncIoBridge::new(body.compat());
        tokio::task::spawn_blocking(move || checked(input, out)).await?
    })
}

fn refusal(status: &Status) -> String {
    match status.code {
        401 => "the appliance does not accept these credentials: `slipway kubeconfig` on it prints good ones".into(),
        404 => {
            "this server has no backups: it is another one, an older one, or keeps its objects in another API server \
                (engine.kubeconfig; back that one up, and this box with --offline)"
                .into()
        }
        _ => status.message.clone(),
    }
}

fn offline<W: Write>(config: &Path, out: W) -> anyhow::Result<(Header, W)> {
    let config = Config::load(config)?;
    let folder = &config.data_dir.0;
    restore::refuse_unfinished(folder)?;
    if !Store::is_in(&config.data_dir.db()) {
        bail!("there is no database in {}", folder.display());
    }
    let store =
        Store::open(appliance::store_options(&config)).context("--offline is for an appliance that is not running")?;
    if let Some(doubt) = store.doubt() {
        eprintln!("warning: {doubt}");
    }
    for (resource, namespace, name) in store.unreadable() {
        eprintln!("warning: {resource} {namespace}/{name} is damaged and is not in this backup");
    }
    let source = BackupSource::new(store.clone(), config.data_dir.pki(), &config.text, Default::default());
    let done = source.take(Timestamp::now()).and_then(|content| {
        let header = content.header.clone();
        let mut progress = ProgressLine::new();
        let out = content.write(out, |lines| {
            show(&mut progress, TAKING, lines, header.lines());
            Ok(())
        });
        progress.end();
        Ok((header, out?))
    });
    local::block_on(async move {
        store.close().await;
        Ok(())
    })?;
    // Opening it as root may have made files.
    restore::give_to_owner(folder)?;
    done
}

/// Shows how many of its lines are done.
pub(super) fn show(progress: &mut ProgressLine, what: &str, lines: u64, all: u64) {
    // Once for each percent: there may be very many lines.
    let percent = |lines: u64| lines.saturating_mul(100) / all.max(1);
    if lines <= 1 || percent(lines) != percent(lines - 1) {
        progress.show(what, Some(percent(lines)));
    }
}

/// Copies the text and checks it on its way.
fn checked<W: Write>(input: impl Read, out: W) -> anyhow::Result<(Header, W)> {
    let mut progress = ProgressLine::new();
    let mut lines = 0;
    let mut tee = Tee { input: BufReader::new(input), out };
    let read = format::read(&mut tee, |header, _| {
        lines += 1;
        show(&mut progress, TAKING, lines, header.lines());
        Ok(())
    });
    progress.end();
    match read {
        Ok(header) => Ok((header, tee.out)),
        Err(ReadError::Io(error)) => Err(error).context("the backup did not arrive"),
        Err(error) => Err(error).context("the backup did not arrive as it should"),
    }
}

/// Writes what is read.
struct Tee<R, W> {
    input: R,
    out: W,
}

impl<R: Read, W: Write> Read for Tee<R, W> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let length = self.input.read(bytes)?;
        self.out.write_all(&bytes[..length])?;
        Ok(length)
    }
}
