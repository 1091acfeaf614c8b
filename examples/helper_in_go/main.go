// A helper of masked counts in Go, on Kafka, after docs/reference/masked-protocol.md.
//
//	helper_in_go FOLDER                    make a key with its state, and print what the contract must have;
//	                                       the folder has the helper's name
//	helper_in_go FOLDER TERMS BROKER...    run; TERMS: a file with what `shoal helper --terms` has printed
package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"log"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatalln("helper:", err)
	}
	return value
}

func main() {
	if len(os.Args) > 3 {
		run(os.Args[1], os.Args[2], os.Args[3:])
	}
	folder, secret := os.Args[1], make([]byte, 32)
	must(0, os.Mkdir(folder, 0o700))
	must(rand.Read(secret))
	store(folder, State{Secret: secret, Kept: map[string]*Model{}})
	_, _, public := keysOf(secret)
	fmt.Printf("[[privacy.helpers]]\nname = \"%s\"\nkey = \"%x\"\n", filepath.Base(folder), public)
}

// store writes the state whole or not at all, and returns when the disk has it.
func store(folder string, state State) {
	file := must(os.OpenFile(folder+"/new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600))
	must(file.Write(must(json.Marshal(state))))
	must(0, file.Sync())
	must(0, file.Close())
	must(0, os.Rename(folder+"/new", folder+"/state.json"))
	must(0, must(os.Open(folder)).Sync())
}

func run(folder, file string, brokers []string) {
	// Two processes with one key could answer one question differently.
	lock := must(os.Open(folder))
	must(0, syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB))
	var terms Terms
	var state State
	must(0, json.Unmarshal(must(os.ReadFile(file)), &terms))
	must(0, json.Unmarshal(must(os.ReadFile(folder+"/state.json")), &state))
	ctx := context.Background()
	client := must(kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeTopics(terms.Topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.RecordPartitioner(kgo.ManualPartitioner())))
	admin := kadm.NewClient(client)
	topic := must(admin.ListTopics(ctx, terms.Topic))[terms.Topic]
	starts := must(admin.ListStartOffsets(ctx, terms.Topic))
	behind := map[int32]int64{} // partition -> its end when this run began, until that was read
	must(admin.ListEndOffsets(ctx, terms.Topic)).Each(func(end kadm.ListedOffset) {
		if start, _ := starts.Lookup(end.Topic, end.Partition); start.Offset < end.Offset {
			behind[end.Partition] = end.Offset
		}
	})
	identity := must(hex.EncodeToString(topic.ID[:]), topic.Err)
	write := func(state State) { store(folder, state) }
	helper := must(newHelper(terms, state, filepath.Base(folder), identity, write))
	var asked [][]byte
	for {
		fetches := client.PollFetches(ctx)
		must(0, fetches.Err())
		for _, record := range fetches.Records() {
			kind := ""
			for _, header := range record.Headers {
				kind += header.Key + " " + string(header.Value) + " "
			}
			switch {
			case strings.HasPrefix(kind, "type masked_counts v 1 "):
				helper.keep(record.Value, uint64(record.Partition), uint64(record.Offset))
			case strings.HasPrefix(kind, "type close_round v 1 "):
				asked = append(asked, record.Value)
			case strings.HasPrefix(kind, "type helper_sum v 1 "):
				must(0, helper.checkOwn(record.Value))
			}
			if record.Offset+1 >= behind[record.Partition] {
				delete(behind, record.Partition)
			}
		}
		// Nothing is answered before all that it has published itself was read.
		for ; len(behind) == 0 && len(asked) > 0; asked = asked[1:] {
			answer, model, err := helper.answer(asked[0])
			if err != nil {
				log.Println("refused:", err)
				continue
			}
			key := []byte(terms.Federation + "/" + model)
			partition := int32(crc32.ChecksumIEEE(key) % uint32(len(topic.Partitions)))
			headers := []kgo.RecordHeader{{Key: "type", Value: []byte("helper_sum")}, {Key: "v", Value: []byte("1")}}
			must(0, client.ProduceSync(ctx, &kgo.Record{Topic: terms.Topic, Key: key, Value: answer,
				Partition: partition, Headers: headers}).FirstErr())
			log.Println("answered a round of", model)
		}
	}
}
