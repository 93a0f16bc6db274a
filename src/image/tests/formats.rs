//! Every format gives the same disk, and the same digest.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use super::super::qcow2::{Qcow2, Qcow2Error};
use super::*;

#[tokio::test]
async fn every_format_and_compression_gives_the_same_disk_and_digest() {
    let (folder, library) = library();
    let at = |name: &str| folder.path().join(name);
    let content = disk(12, 1);
    let raw = at("disk.raw");
    fs::write(&raw, &content).expect("written");
    let convert = |name: &str, options: &[&str]| -> PathBuf {
        let to = at(name);
        run("qemu-img", &[&["convert", "-f", "raw", "-O", "qcow2"], options, &[text(&raw), text(&to)]].concat());
        to
    };
    let pack = |name: &str, from: &PathBuf| -> PathBuf {
        let data = fs::read(from).expect("read");
        let (to, mut packed) = (at(name), Vec::new());
        match name.rsplit('.').next() {
            Some("gz") => {
                // Two members, as pigz and bgzip write.
                for half in [&data[..data.len() / 2], &data[data.len() / 2..]] {
                    let mut gz = flate2::write::GzEncoder::new(&mut packed, flate2::Compression::fast());
                    gz.write_all(half).expect("gz");
                    gz.finish().expect("gz");
                }
            }
            Some("xz") => {
                for half in [&data[..data.len() / 2], &data[data.len() / 2..]] {
                    let mut xz = liblzma::write::XzEncoder::new(&mut packed, 1);
                    xz.write_all(half).expect("xz");
                    xz.finish().expect("xz");
                }
            }
            Some("zst") => packed = zstd::encode_all(data.as_slice(), 1).expect("zstd"),
            _ => {
                let mut bz2 = bzip2::write::BzEncoder::new(&mut packed, bzip2::Compression::fast());
                bz2.write_all(&data).expect("bz2");
                bz2.finish().expect("bz2");
            }
        }
        fs::write(&to, packed).expect("written");
        to
    };
    let plain = convert("plain.qcow2", &[]);
    let mut sources = vec![
        raw.clone(),
        pack("disk.raw.gz", &raw),
        pack("disk.raw.xz", &raw),
        pack("disk.raw.zst", &raw),
        pack("disk.raw.bz2", &raw),
        pack("disk.qcow2.xz", &plain),
        pack("disk.qcow2.gz", &plain),
        plain,
        convert("zlib.qcow2", &["-c"]),
        convert("zstd.qcow2", &["-c", "-o", "compression_type=zstd"]),
        convert("v2.qcow2", &["-o", "compat=0.10"]),
        convert("v2c.qcow2", &["-c", "-o", "compat=0.10,cluster_size=4k"]),
        convert("small.qcow2", &["-o", "cluster_size=512"]),
        convert("large.qcow2", &["-o", "cluster_size=2M"]),
        convert("largec.qcow2", &["-c", "-o", "cluster_size=2M,compression_type=zstd"]),
        convert("full.qcow2", &["-S", "0", "-o", "preallocation=full"]),
        convert("metadata.qcow2", &["-o", "preallocation=metadata"]),
    ];
    // Zero clusters, over data and over nothing, and a discarded one.
    let zero = convert("zero.qcow2", &[]);
    run("qemu-io", &["-c", "write -z 0 128k", "-c", "write -z 1M 64k", "-c", "write -z -u 2M 64k", text(&zero)]);
    sources.push(zero.clone());

    let mut digests = Vec::new();
    for source in &sources {
        let imported = import(&library, &spec(file_url(source))).await.unwrap_or_else(|e| panic!("{source:?}: {e}"));
        let mut expected = content.clone();
        if *source == zero {
            expected[..128 << 10].fill(0);
            expected[MIB..MIB + (64 << 10)].fill(0);
            expected[2 * MIB..2 * MIB + (64 << 10)].fill(0);
            let (back, to) = (at("back.raw"), imported.digest.clone());
            run("qemu-img", &["convert", "-O", "raw", text(&zero), text(&back)]);
            assert!(fs::read(&back).expect("read") == assemble(&library, &to), "qemu-img reads the same");
        } else {
            digests.push(imported.digest.clone());
        }
        assert!(assemble(&library, &imported.digest) == expected, "{source:?}");
        assert_eq!(imported.virtual_size, content.len() as u64);
    }
    assert!(digests.iter().all(|digest| *digest == digests[0]), "{digests:?}");
    assert_eq!(library.list().len(), 2);
    assert_eq!(files(&folder.path().join("images/tmp")), 0);
}

#[tokio::test]
async fn a_disk_of_odd_length_ends_with_zeros_and_an_empty_one_has_no_chunks() {
    let (folder, library) = library();
    let path = folder.path().join("odd");
    fs::write(&path, [1; 1001]).expect("written");
    let odd = import(&library, &spec(file_url(&path))).await.expect("imported");
    assert_eq!(odd.virtual_size, 1024);
    assert_eq!(assemble(&library, &odd.digest), [vec![1; 1001], vec![0; 23]].concat());
    let sparse = folder.path().join("sparse.qcow2");
    run("qemu-img", &["create", "-f", "qcow2", text(&sparse), "2T"]);
    let sparse = import(&library, &spec(file_url(&sparse))).await.expect("imported");
    assert_eq!((sparse.virtual_size, sparse.stored_size), (2 << 40, 0));
    assert_eq!(library.manifest(&sparse.digest).expect("manifest").chunks, []);
}

#[tokio::test]
async fn what_cannot_be_read_is_refused_with_what_to_do() {
    let (folder, library) = library();
    let at = |name: &str| folder.path().join(name);
    let raw = at("disk.raw");
    fs::write(&raw, disk(3, 2)).expect("written");
    let mut sources = Vec::new();
    for (format, part) in
        [("vmdk", "format vmdk is not read; convert it"), ("vdi", "format vdi"), ("vhdx", "format vhdx")]
    {
        let to = at(format);
        run("qemu-img", &["convert", "-f", "raw", "-O", format, text(&raw), text(&to)]);
        sources.push((spec(file_url(&to)), part.to_owned()));
    }
    let base = at("over.qcow2");
    run("qemu-img", &["create", "-f", "qcow2", "-b", "disk.raw", "-F", "raw", text(&base)]);
    sources.push((spec(file_url(&base)), "needs a backing file (disk.raw)".into()));
    let external = at("external.qcow2");
    let option = format!("data_file={}", at("data").display());
    run("qemu-img", &["create", "-f", "qcow2", "-o", &option, text(&external), "1M"]);
    sources.push((spec(file_url(&external)), "keeps its data in another file".into()));
    let extended = at("extended.qcow2");
    run("qemu-img", &["create", "-f", "qcow2", "-o", "extended_l2=on", text(&extended), "1M"]);
    sources.push((spec(file_url(&extended)), "extended L2".into()));
    let secret = at("secret.qcow2");
    run(
        "qemu-img",
        &[
            "create",
            "-f",
            "qcow2",
            "--object",
            "secret,id=s,data=x",
            "-o",
            // LUKS would measure how fast it may be broken, which a busy machine does not let it.
            "encrypt.format=aes,encrypt.key-secret=s",
            text(&secret),
            "1M",
        ],
    );
    sources.push((spec(file_url(&secret)), "is encrypted".into()));
    let whole = at("whole.qcow2");
    run("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", text(&raw), text(&whole)]);
    let data = fs::read(&whole).expect("read");
    for length in [3, 80, 200, data.len() / 4, data.len() / 2] {
        let cut = at(&format!("cut{length}.qcow2"));
        fs::write(&cut, &data[..length]).expect("written");
        sources.push((ImageSpec { format: Some("qcow2".into()), ..spec(file_url(&cut)) }, String::new()));
    }
    let page = at("page");
    fs::write(&page, "\n<!DOCTYPE html><html>Log in</html>").expect("written");
    sources.push((spec(file_url(&page)), "web page".into()));
    fs::write(at("empty"), "").expect("written");
    sources.push((spec(file_url(&at("empty"))), "empty".into()));
    let mut damaged = zstd::encode_all(disk(3, 2).as_slice(), 1).expect("zstd");
    damaged.truncate(5000);
    fs::write(at("cut.zst"), damaged).expect("written");
    sources.push((spec(file_url(&at("cut.zst"))), "zstd data is damaged or cut short".into()));
    let other = |format: &str| ImageSpec { format: Some(format.into()), ..spec(file_url(&raw)) };
    sources.push((other("qcow2"), "is not one".into()));
    sources.push((other("vdi"), "qemu-img convert".into()));
    sources.push((other("live-iso"), "no CD001 at byte 32769".into()));
    sources.push((other("tar"), "use raw, qcow2 or live-iso".into()));
    sources.push((spec("ftp://h/x"), "use http or https".into()));
    sources.push((spec("not a url"), "the image's URL".into()));
    sources.push((spec("file:///"), "image.file_folder".into()));
    for (spec, part) in sources {
        let error = import(&library, &spec).await.expect_err(&spec.url);
        assert!(error.message.contains(&part) && !error.retry, "{}: {error:?}", spec.url);
        assert!(part.is_empty() || error.message.contains(&spec.url) || !spec.url.contains(':'), "{error}");
    }
    assert_eq!(library.list(), []);
    assert_eq!(files(&folder.path().join("images")), 0, "nothing is left behind");
    // Raw was asked for: what looks like a qcow2 is data.
    let as_raw = import(&library, &ImageSpec { format: Some("raw".into()), ..spec(file_url(&whole)) }).await;
    assert_eq!(as_raw.expect("imported").virtual_size, data.len().next_multiple_of(512) as u64);
}

fn read_all(data: &[u8]) -> Result<usize, Qcow2Error> {
    let mut file = tempfile::tempfile().expect("file");
    file.write_all(data).expect("written");
    let mut image = Qcow2::open(file)?;
    let (mut at, mut read) = (0, 0);
    let mut buffer = vec![0; MIB];
    // Mutations may claim terabytes; some hundred chunks show everything.
    for _ in 0..300 {
        let data = image.next_data(at)?;
        if data >= image.virtual_size() {
            break;
        }
        at = data / MIB as u64 * MIB as u64;
        buffer.fill(0);
        let length = (image.virtual_size() - at).min(MIB as u64) as usize;
        read += usize::from(image.read_at(at, &mut buffer[..length])?);
        at += MIB as u64;
    }
    Ok(read)
}

#[test]
fn a_mutated_or_cut_qcow2_is_an_error_or_another_disk_but_never_a_panic() {
    let folder = tempfile::tempdir().expect("folder");
    let raw = folder.path().join("raw");
    fs::write(&raw, &disk(3, 3)[..3 * MIB]).expect("written");
    let mut refused = 0;
    for options in [&["-o", "cluster_size=4k"][..], &["-c"], &["-c", "-o", "compression_type=zstd,cluster_size=16k"]] {
        let path = folder.path().join("image");
        run("qemu-img", &[&["convert", "-f", "raw", "-O", "qcow2"], options, &[text(&raw), text(&path)]].concat());
        let good = fs::read(&path).expect("read");
        assert!(read_all(&good).expect("good") > 1);
        let mut random = 0x2545_f491_4f6c_dd1d_u64;
        let mut next = |limit: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random % limit as u64) as usize
        };
        // Where non-zero metadata lies, mutations tell most.
        let tables: Vec<usize> =
            (0..good.len()).filter(|at| *at < 112 || (good[*at] != 0 && at % 8 < 8)).take(4000).collect();
        for _ in 0..400 {
            let mut bad = good.clone();
            for _ in 0..=next(3) {
                let at = if next(4) > 0 { tables[next(tables.len())] } else { next(bad.len()) };
                bad[at] = next(256) as u8;
            }
            if next(5) == 0 {
                bad.truncate(next(good.len()));
            }
            refused += usize::from(read_all(&bad).is_err());
        }
        // Both L2 entries at one cluster.
        let l1 = u64::from_be_bytes(good[40..48].try_into().expect("8")) as usize;
        let mut looped = good.clone();
        looped.copy_within(40..48, l1);
        assert!(matches!(read_all(&looped), Err(Qcow2Error::Damaged(reason)) if reason.contains("something else")));
    }
    assert!(refused > 100, "{refused}");
}

/// qemu-img packs compressed clusters one after the other: some end in the sector where the next one begins, and none is
/// named twice. One that is would be unpacked again and again.
#[test]
fn a_compressed_cluster_is_named_once() {
    let folder = tempfile::tempdir().expect("folder");
    let (raw, path) = (folder.path().join("raw"), folder.path().join("image"));
    // Half of its bits are random, so that each cluster takes some sectors.
    let halves: String = (0..(3 << 20) / 64_u64).map(|number| sha256(&number.to_be_bytes())).collect();
    fs::write(&raw, halves).expect("written");
    let options = ["", "cluster_size=2M", "cluster_size=16k,compression_type=zstd", "cluster_size=16k"];
    for options in options.map(|option| if option.is_empty() { "compat=1.1" } else { option }) {
        run("qemu-img", &["convert", "-c", "-f", "raw", "-O", "qcow2", "-o", options, text(&raw), text(&path)]);
        let mut image = fs::read(&path).expect("read");
        let long = |image: &[u8], at: usize| u64::from_be_bytes(image[at..at + 8].try_into().expect("8"));
        let bits = 62 - (u32::from(image[23]) - 8);
        let first = (long(&image, long(&image, 40) as usize) & 0x00ff_ffff_ffff_fe00) as usize;
        let entries: Vec<u64> = (0..2).map(|number| long(&image, first + 8 * number)).collect();
        assert!(entries.iter().all(|entry| entry >> 62 == 1), "{options}: both are compressed");
        let offset = |entry: u64| entry & ((1 << bits) - 1);
        assert!(!offset(entries[1]).is_multiple_of(512), "{options}: it begins in the sector where another ends");
        assert_eq!(read_all(&image).expect(options), 3, "{options}");
        // The same again, and one that begins a bit later in it.
        for again in [entries[0], entries[0] + 5] {
            image[first + 8..first + 16].copy_from_slice(&again.to_be_bytes());
            let reason = read_all(&image);
            assert!(
                matches!(&reason, Err(Qcow2Error::Damaged(reason)) if reason.contains("something else")),
                "{options}: {reason:?}"
            );
        }
    }
}

/// An xz file whose header asks for a dictionary of 128 MiB.
fn greedy_xz() -> Vec<u8> {
    let mut packed = Vec::new();
    let mut xz = liblzma::write::XzEncoder::new(&mut packed, 1);
    xz.write_all(&disk(1, 3)).expect("xz");
    xz.finish().expect("xz");
    // The header of the first block follows that of the stream: its size, flags, filter LZMA2, one byte of properties.
    let block = &mut packed[12..];
    let length = (usize::from(block[0]) + 1) * 4;
    assert_eq!(block[2..4], [0x21, 1]);
    block[4] = 30;
    let mut sum = flate2::Crc::new();
    sum.update(&block[..length - 4]);
    block[length - 4..length].copy_from_slice(&sum.sum().to_le_bytes());
    packed
}

#[tokio::test]
async fn an_image_gets_the_memory_of_no_other_and_an_iso_is_no_larger_than_one_is() {
    let (folder, library) = library();
    let at = |name: &str| folder.path().join(name);
    // A frame with a window of 128 MiB, and one raw block of 32 bytes, the last.
    let zstd = [&[0x28, 0xb5, 0x2f, 0xfd, 0, 17 << 3, 1, 1, 0][..], &[7; 32]].concat();
    for (name, data) in [("greedy.xz", greedy_xz()), ("greedy.zst", zstd)] {
        fs::write(at(name), data).expect("written");
        let error = import(&library, &spec(file_url(&at(name)))).await.expect_err(name);
        assert!(error.message.contains("takes more memory than it may") && !error.retry, "{error}");
    }
    let large = fs::File::create(at("large.iso")).expect("made");
    large.set_len((16 << 30) + 2048).expect("sparse");
    let live = ImageSpec { format: Some("live-iso".into()), ..spec(file_url(&at("large.iso"))) };
    let error = import(&library, &live).await.expect_err("too large");
    assert!(error.message.contains("at most 16 GiB") && !error.retry, "{error}");
}
