package main

import (
	"crypto/sha3"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"math/big"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/vmihailenco/msgpack/v5"
)

// The test vectors of the project, by the code of this helper.

func unhex(t *testing.T, digits string) []byte {
	t.Helper()
	content, err := hex.DecodeString(digits)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func vectors(t *testing.T, file string, groups any) {
	t.Helper()
	content, err := os.ReadFile("../../tests/vectors/masked/" + file + ".json")
	if err == nil {
		err = json.Unmarshal(content, groups)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func same(t *testing.T, what, is, expected string) {
	t.Helper()
	if is != expected || expected == "" && what != "reason" {
		t.Errorf("%s: %q and not %q", what, is, expected)
	}
}

func TestKeys(t *testing.T) {
	var groups struct {
		Helpers, Low_order []struct{ Secret, Key, Client_key string }
		Pairs              []struct {
			Federation, Contract, Model, Helper, Client, Log, Helper_secret, Client_key, Pair string
		}
	}
	vectors(t, "keys", &groups)
	for _, helper := range groups.Helpers {
		_, _, public := keysOf(unhex(t, helper.Secret))
		same(t, "key", hex.EncodeToString(public), helper.Key)
	}
	for _, pair := range groups.Pairs {
		agree, _, _ := keysOf(unhex(t, pair.Helper_secret))
		made := pairKey(agree, unhex(t, pair.Client_key), pair.Federation, pair.Contract, pair.Model,
			pair.Helper, pair.Client, "log "+pair.Log)
		same(t, "pair", hex.EncodeToString(made), pair.Pair)
	}
	agree, _, _ := keysOf(make([]byte, 32))
	for _, point := range groups.Low_order {
		made := pairKey(agree, unhex(t, point.Client_key), "plant")
		same(t, "low order", hex.EncodeToString(made), hex.EncodeToString(make([]byte, 32)))
	}
	if len(groups.Helpers) < 3 || len(groups.Pairs) < 3 || len(groups.Low_order) != 7 {
		t.Error("cases are missing")
	}
}

func TestMasks(t *testing.T) {
	var groups struct {
		Masks []struct {
			Pair, Name, Mask string
			Cells            int
		}
	}
	vectors(t, "masks", &groups)
	for _, mask := range groups.Masks {
		total := make([]uint32, mask.Cells)
		addMask(total, unhex(t, mask.Pair), unhex(t, mask.Name))
		same(t, "mask", hex.EncodeToString(bytesOf(total)), mask.Mask)
	}
	if len(groups.Masks) < 3 {
		t.Error("cases are missing")
	}
}

func bytesOf(words []uint32) (content []byte) {
	for _, word := range words {
		content = append(content, byte(word), byte(word>>8), byte(word>>16), byte(word>>24))
	}
	return content
}

func TestNoise(t *testing.T) {
	var groups struct {
		Tables []struct {
			Variance int64
			Entries  int
			First    []string
			Sha256   string
		}
		Draws []struct {
			Variance int64
			Seed     string
			Noise    []int64
		}
		Words []struct {
			Variance, Noise int64
			Word, Seed      string
			Cell            uint64
		}
		Seeds []struct{ Secret, Batch, Seed string }
	}
	vectors(t, "noise", &groups)
	tables := map[int64][]*big.Int{}
	for _, expected := range groups.Tables {
		below := table(expected.Variance, 63)
		tables[expected.Variance] = table(expected.Variance, 63+128)
		// The vectors end with the first that is 2^63 - 1, this helper's table where all of it is reached.
		last := big.NewInt(1<<63 - 1)
		end := slices.IndexFunc(below, func(entry *big.Int) bool { return entry.Cmp(last) >= 0 })
		below = append(below[:end:end], last)
		var content []byte
		for place, entry := range below {
			content = append(content, number(entry.Uint64())...)
			if place < len(expected.First) {
				same(t, "entry", entry.String(), expected.First[place])
			}
		}
		same(t, "table", hex.EncodeToString(hashed(string(content))), expected.Sha256)
		same(t, "entries", strconv.Itoa(len(below)), strconv.Itoa(expected.Entries))
	}
	for _, draw := range groups.Draws {
		seed := unhex(t, draw.Seed)
		words := sha3.SumSHAKE256(seed, 8*len(draw.Noise))
		for cell, noise := range draw.Noise {
			word := binary.LittleEndian.Uint64(words[8*cell:])
			made := noiseOf(tables[draw.Variance], word, seed, uint64(cell))
			if made != noise {
				t.Errorf("variance %d, cell %d: %d", draw.Variance, cell, made)
			}
		}
	}
	for _, word := range groups.Words {
		value, _ := strconv.ParseUint(word.Word, 10, 64)
		made := noiseOf(tables[word.Variance], value, unhex(t, word.Seed), word.Cell)
		if made != word.Noise {
			t.Errorf("word %s: %d and not %d", word.Word, made, word.Noise)
		}
	}
	for _, seed := range groups.Seeds {
		made := hmacOf(unhex(t, seed.Secret), append([]byte("shoal noise 1"), unhex(t, seed.Batch)...))
		same(t, "seed", hex.EncodeToString(made), seed.Seed)
	}
	if len(groups.Tables) < 4 || len(groups.Draws) < 4 || len(groups.Words) < 20 || len(groups.Seeds) < 2 {
		t.Error("cases are missing")
	}
}

func TestRefusals(t *testing.T) {
	var groups struct {
		Refusals []struct {
			Batch_min int
			Round     uint64
			Unmasked  map[string]uint64
			Messages  []string
			Questions []struct{ Close, Reason string }
		}
	}
	vectors(t, "refusals", &groups)
	asked := 0
	for _, expected := range groups.Refusals {
		for _, question := range expected.Questions {
			var end Message
			helper := Helper{Terms: Terms{Federation: "plant", Contract: "0123456789abcdef0123456789abcdef"}}
			helper.BatchMin = expected.Batch_min
			model := &Model{Round: expected.Round, Unmasked: expected.Unmasked, sent: map[[2]uint64]*Message{}}
			helper.Kept = map[string]*Model{"clusters": model}
			for offset, message := range expected.Messages {
				helper.keep(unhex(t, message), 0, uint64(offset))
			}
			must(0, msgpack.Unmarshal(unhex(t, question.Close), &end))
			_, err := helper.batch(&end, model)
			reason := ""
			if err != nil {
				reason = err.Error()
			}
			same(t, "reason", reason, question.Reason)
			asked++
		}
	}
	if asked < 15 {
		t.Error("cases are missing")
	}
}

func stateOf(t *testing.T, secret string) State {
	t.Helper()
	return State{Secret: unhex(t, secret), Kept: map[string]*Model{}}
}

func TestRounds(t *testing.T) {
	var groups struct {
		Rounds []struct {
			Terms   Terms
			Log     string
			Clients []struct{ Value string }
			Close   string
			Helpers []struct{ Name, Secret, Value string }
		}
	}
	vectors(t, "rounds", &groups)
	answers := 0
	for _, round := range groups.Rounds {
		for _, expected := range round.Helpers {
			var stored []State
			store := func(state State) { stored = append(stored, state) }
			helper, err := newHelper(round.Terms, stateOf(t, expected.Secret), expected.Name, round.Log, store)
			if err != nil {
				t.Fatal(err)
			}
			for offset, client := range round.Clients {
				helper.keep(unhex(t, client.Value), 0, uint64(offset))
			}
			for range 2 { // the same question has the same answer
				answer, model, err := helper.answer(unhex(t, round.Close))
				if err != nil {
					t.Fatal(err)
				}
				same(t, "answer", hex.EncodeToString(answer), expected.Value)
				answers++
				if len(stored) != 1 || !slices.Equal(stored[0].Kept[model].Answer, answer) {
					t.Error("an answer is stored once, before it is given")
				}
			}
			if err := helper.checkOwn(unhex(t, expected.Value)); err != nil {
				t.Error(err)
			}
			old, _ := newHelper(round.Terms, stateOf(t, expected.Secret), expected.Name, round.Log, store)
			if old.checkOwn(unhex(t, expected.Value)) == nil {
				t.Error("a state that does not know a sum in the log was not noticed")
			}
		}
	}
	if answers < 4 {
		t.Error("cases are missing")
	}
}
