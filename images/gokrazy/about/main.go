// Reads the config drive, gives the machine its name, and answers GET / on port 8080 with what it read.
//
// What user data says may be secret, so it is its SHA-256 that is told.
package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

const (
	label     = "config-2"
	mountedAt = "/config-drive"
	listen    = ":8080"
	// ECMA-119 section 8.4: the primary volume descriptor is the 17th sector of 2048 bytes, and this is where its
	// identifiers are.
	descriptor   = 16 * 2048
	standardID   = "\x01CD001"
	volumeID     = 40
	volumeLength = 32
	// Largest file of a config drive that Slipway makes.
	maxFile = 16 << 20
)

type about struct {
	Name           string `json:"name"`
	UUID           string `json:"uuid"`
	Kernel         string `json:"kernel"`
	Device         string `json:"configDrive"`
	UserDataSHA256 string `json:"userDataSHA256,omitempty"`
}

// findDrive looks for the block device whose ISO 9660 file system has the label.
func findDrive() (string, error) {
	names, err := filepath.Glob("/sys/class/block/*")
	if err != nil {
		return "", err
	}
	for _, name := range names {
		device := filepath.Join("/dev", filepath.Base(name))
		file, err := os.Open(device)
		if err != nil {
			continue
		}
		sector := make([]byte, 2048)
		_, err = file.ReadAt(sector, descriptor)
		file.Close()
		if err == nil && bytes.HasPrefix(sector, []byte(standardID)) &&
			string(bytes.TrimRight(sector[volumeID:volumeID+volumeLength], " \x00")) == label {
			return device, nil
		}
	}
	return "", fmt.Errorf("no block device has a file system labelled %s", label)
}

func read(name string) ([]byte, error) {
	file, err := os.Open(filepath.Join(mountedAt, "openstack/latest", name))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(io.LimitReader(file, maxFile))
}

func readDrive() (*about, error) {
	device, err := findDrive()
	if err != nil {
		return nil, err
	}
	// A restart of this program finds it mounted.
	if err := unix.Mount(device, mountedAt, "iso9660", unix.MS_RDONLY|unix.MS_NOEXEC|unix.MS_NOSUID|unix.MS_NODEV, ""); err != nil && err != unix.EBUSY {
		return nil, fmt.Errorf("mounting %s: %v", device, err)
	}
	text, err := read("meta_data.json")
	if err != nil {
		return nil, err
	}
	found := &about{Device: device}
	if err := json.Unmarshal(text, found); err != nil {
		return nil, fmt.Errorf("meta_data.json: %v", err)
	}
	// It is of the drive's own file only.
	found.Device, found.UserDataSHA256 = device, ""
	if data, err := read("user_data"); err == nil {
		sum := sha256.Sum256(data)
		found.UserDataSHA256 = hex.EncodeToString(sum[:])
	} else if !os.IsNotExist(err) {
		return nil, err
	}
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return nil, err
	}
	found.Kernel = unix.ByteSliceToString(name.Release[:])
	return found, nil
}

func main() {
	found, err := readDrive()
	if err != nil {
		// gokrazy starts it again.
		log.Fatal(err)
	}
	if err := unix.Sethostname([]byte(found.Name)); err != nil {
		log.Printf("sethostname: %v", err)
	}
	log.Printf("this is %s (%s)", found.Name, found.UUID)
	http.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(found)
	})
	server := &http.Server{Addr: listen, ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second, MaxHeaderBytes: 8 << 10}
	log.Fatal(server.ListenAndServe())
}
