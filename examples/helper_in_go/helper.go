package main

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdh"
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/sha3"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/big"
	"slices"
	"strings"

	"github.com/vmihailenco/msgpack/v5"
)

// Terms are what `shoal helper --terms` prints of the contract.
type Terms struct {
	Federation, Contract, Topic string
	Models                      []string
	Helpers                     map[string]string
	BatchMin                    int `json:"batch_min"`
	Variance                    int64
}

// State is all that a helper keeps: a key without it would unmask windows a second time.
type State struct {
	Secret        []byte
	Contract, Log string
	Kept          map[string]*Model
}

// Model is what a helper keeps of one model. All but `sent` is stored.
type Model struct {
	Round         uint64                 // newest round that was answered
	Batch, Answer []byte                 // its batch, and the bytes of the answer
	Unmasked      map[string]uint64      // client -> its newest window that was unmasked
	sent          map[[2]uint64]*Message // partition and offset -> message of the round after it
}

// Helper is one helper of a federation, on one log.
type Helper struct {
	Terms
	State
	name  string
	store func(State) // returns once a power cut does not lose it
	agree *ecdh.PrivateKey
	sign  ed25519.PrivateKey
	below []*big.Int
}

// newHelper: `state` as it was stored, `name` in the contract, `log` the identity of the log.
func newHelper(terms Terms, state State, name, log string, store func(State)) (*Helper, error) {
	agree, sign, public := keysOf(state.Secret)
	helper := &Helper{terms, state, name, store, agree, sign, table(terms.Variance, 63+128)}
	if terms.Helpers[name] != hex.EncodeToString(public) || state.Contract != "" && state.Contract != terms.Contract {
		return nil, fmt.Errorf("the contract has another key for %s, or the state is of another contract", name)
	}
	for _, name := range terms.Models {
		model := helper.Kept[name]
		if model == nil {
			model = &Model{Unmasked: map[string]uint64{}}
		}
		if state.Log != log { // it was created anew: what was unmasked stays so
			model = &Model{Unmasked: model.Unmasked}
		}
		model.sent = map[[2]uint64]*Message{}
		helper.Kept[name] = model
	}
	helper.State.Contract, helper.Log = terms.Contract, log
	return helper, nil
}

// Message has the fields of all messages that a helper reads, and in order those of its answer.
type Message struct {
	Federation string `msgpack:"federation"`
	Contract   string `msgpack:"contract"`
	Model      string `msgpack:"model"`
	Helper     string `msgpack:"helper,omitempty"`
	Round      uint64 `msgpack:"round"`
	Batch      []byte `msgpack:"batch,omitempty"`
	Total      []byte `msgpack:"total,omitempty"`
	Signature  []byte `msgpack:"signature,omitempty"`
	Client     string `msgpack:"client,omitempty"`
	Key        []byte `msgpack:"key,omitempty"`
	Window     uint64 `msgpack:"window,omitempty"`
	Places     uint64 `msgpack:"places,omitempty"`
	Plan       []byte `msgpack:"plan,omitempty"`
	Nonce      []byte `msgpack:"nonce,omitempty"`
	Counts     []byte `msgpack:"counts,omitempty"`
	Cells      uint64 `msgpack:"cells,omitempty"`
	Partition  uint64 `msgpack:"partition,omitempty"`
	Offsets    []byte `msgpack:"offsets,omitempty"`
}

// read gives a message of this contract, and what is kept of its model; nil for any other.
func (helper *Helper) read(value []byte) (*Message, *Model) {
	message := &Message{}
	fits := msgpack.Unmarshal(value, message) == nil && message.Federation == helper.Federation
	if !fits || message.Contract != helper.Terms.Contract || message.Round == 0 {
		return nil, nil
	}
	return message, helper.Kept[message.Model]
}

// keep keeps a client's message of the round that is answered next.
func (helper *Helper) keep(value []byte, partition, offset uint64) {
	message, model := helper.read(value)
	if model == nil || message.Round != model.Round+1 || len(model.sent) >= 200_000 {
		return
	}
	fits := len(message.Counts) > 0 && len(message.Counts)%4 == 0 && message.Window < 1<<32
	if fits && len(message.Key) == 32 && len(message.Nonce) == 16 && len(message.Plan) == 16 {
		model.sent[[2]uint64{partition, offset}] = message
	}
}

// batch gives the messages that a round ends with; an error where it must not be answered.
func (helper *Helper) batch(end *Message, model *Model) (entries []*Message, err error) {
	missing, twice, unmasked := false, false, false
	for at := 0; at+8 <= len(end.Offsets) && !missing; at += 8 {
		entry := model.sent[[2]uint64{end.Partition, binary.LittleEndian.Uint64(end.Offsets[at:])}]
		missing = entry == nil || entry.Round != end.Round || !bytes.Equal(entry.Plan, end.Plan) ||
			uint64(len(entry.Counts)/4) != end.Cells
		entries = append(entries, entry)
	}
	content := slices.Concat([]byte("shoal batch 1"), hashed(end.Federation, end.Contract, end.Model),
		number(end.Round), end.Plan, number(end.Cells))
	if !missing {
		slices.SortFunc(entries, func(a, b *Message) int { return strings.Compare(a.Client, b.Client) })
		for place, entry := range entries {
			newest, known := model.Unmasked[entry.Client]
			unmasked = unmasked || known && entry.Window <= newest
			twice = twice || place > 0 && entry.Client == entries[place-1].Client
			content = slices.Concat(content, hashed(entry.Client), number(entry.Window),
				number(entry.Places), entry.Key, entry.Nonce)
		}
	}
	refuse := func(holds bool, why string) {
		if holds && err == nil {
			err = fmt.Errorf("%s", why)
		}
	}
	refuse(end.Round == model.Round, "another batch of this round was answered before")
	refuse(end.Round < model.Round, "old")
	refuse(missing, "its batch has messages that are not in the log, or not of this round and plan")
	refuse(twice, "its batch has two messages of one client")
	refuse(len(entries) < helper.BatchMin, fmt.Sprintf("its batch has fewer than %d clients", helper.BatchMin))
	refuse(unmasked, "its batch has a window that was unmasked before")
	refuse(!bytes.Equal(hashed(string(content)), end.Batch), "its digest is not that of its batch")
	return entries, err
}

// answer gives the answer to the end of a round, and its model; an error says why there is none. It is
// stored before it is given to be published: a power cut must not bring about a second one.
func (helper *Helper) answer(value []byte) ([]byte, string, error) {
	end, model := helper.read(value)
	if model == nil {
		return nil, "", fmt.Errorf("it is not of this contract")
	}
	if end.Round == model.Round && bytes.Equal(end.Batch, model.Batch) {
		return model.Answer, end.Model, nil
	}
	entries, err := helper.batch(end, model)
	if err != nil {
		return nil, "", err
	}
	total := make([]uint32, end.Cells)
	for _, entry := range entries {
		pair := pairKey(helper.agree, entry.Key, end.Federation, end.Contract, end.Model, helper.name,
			entry.Client, "log "+helper.Log)
		addMask(total, pair, slices.Concat([]byte("shoal masked 1"), number(end.Round),
			number(entry.Window), entry.Plan, entry.Nonce))
		model.Unmasked[entry.Client] = entry.Window
	}
	sum := Message{Federation: end.Federation, Contract: end.Contract, Model: end.Model,
		Helper: helper.name, Round: end.Round, Batch: end.Batch}
	seed := hmacOf(helper.Secret, slices.Concat([]byte("shoal noise 1"), end.Batch))
	words := sha3.SumSHAKE256(seed, 8*len(total))
	for cell := range total {
		word := binary.LittleEndian.Uint64(words[8*cell:])
		noise := noiseOf(helper.below, word, seed, uint64(cell))
		sum.Total = binary.LittleEndian.AppendUint32(sum.Total, total[cell]-uint32(noise))
	}
	sum.Signature = ed25519.Sign(helper.sign, sum.content())
	var packed bytes.Buffer
	encoder := msgpack.NewEncoder(&packed)
	encoder.UseCompactInts(true)
	must(0, encoder.Encode(sum))
	*model = Model{end.Round, end.Batch, packed.Bytes(), model.Unmasked, map[[2]uint64]*Message{}}
	helper.store(helper.State)
	return model.Answer, end.Model, nil
}

// content is what the signature of a sum is over.
func (sum *Message) content() []byte {
	names := hashed(sum.Federation, sum.Contract, sum.Model, sum.Helper)
	return slices.Concat([]byte("shoal helper sum 1"), names, number(sum.Round), sum.Batch, sum.Total)
}

// checkOwn: a sum under this helper's signature that its state does not know shows an old copy of it.
func (helper *Helper) checkOwn(value []byte) error {
	sum, model := helper.read(value)
	if model == nil || sum.Helper != helper.name || sum.Round < model.Round ||
		sum.Round == model.Round && bytes.Equal(sum.Batch, model.Batch) ||
		!ed25519.Verify(helper.sign.Public().(ed25519.PublicKey), sum.content(), sum.Signature) {
		return nil
	}
	return fmt.Errorf("the state is older than what this helper has published, round %d: make a new key", sum.Round)
}

// hashed joins the digests of texts, so that no two lists of texts give the same bytes.
func hashed(texts ...string) (all []byte) {
	for _, text := range texts {
		digest := sha256.Sum256([]byte(text))
		all = append(all, digest[:]...)
	}
	return all
}

func number(value uint64) []byte { return binary.LittleEndian.AppendUint64(nil, value) }

func hmacOf(key, message []byte) []byte {
	mac := hmac.New(sha256.New, key)
	mac.Write(message)
	return mac.Sum(nil)
}

// keysOf gives the two private keys that follow from a helper's secret, and its public key.
func keysOf(secret []byte) (*ecdh.PrivateKey, ed25519.PrivateKey, []byte) {
	agree := must(ecdh.X25519().NewPrivateKey(hashed("shoal agree 1" + string(secret))))
	sign := ed25519.NewKeyFromSeed(hashed("shoal sign 1" + string(secret)))
	return agree, sign, slices.Concat(agree.PublicKey().Bytes(), sign.Public().(ed25519.PublicKey))
}

// pairKey is what a helper shares with one client; zeros for a client's key of low order.
func pairKey(agree *ecdh.PrivateKey, client []byte, names ...string) []byte {
	shared, err := agree.ECDH(must(ecdh.X25519().NewPublicKey(client)))
	if err != nil {
		return make([]byte, 32)
	}
	both := []string{string(agree.PublicKey().Bytes()), string(client)}
	slices.Sort(both)
	info := "shoal mask 1" + both[0] + both[1] + string(hashed(names...))
	return must(hkdf.Key(sha256.New, shared, []byte("shoal"), info, 32))
}

// addMask adds the mask of the message of this name to total, modulo 2^32.
func addMask(total []uint32, pair, name []byte) {
	stream := make([]byte, 4*len(total))
	block := must(aes.NewCipher(hmacOf(pair, name)))
	cipher.NewCTR(block, make([]byte, aes.BlockSize)).XORKeyStream(stream, stream)
	for cell := range total {
		total[cell] += binary.LittleEndian.Uint32(stream[4*cell:])
	}
}

// table gives the whole parts of 2^bits P(|K| <= j), j = 0, 1, ..., until they are 2^bits, for the
// discrete Gaussian: P(k) is proportional to exp(-k^2 / (2 variance)).
func table(variance int64, bits uint) (below []*big.Int) {
	float := func(value int64) *big.Float { // of its last 192 bits rounding takes fewer than 64
		return new(big.Float).SetPrec(bits + 192).SetInt64(value)
	}
	ratio, term := float(1), float(1) // exp(-1 / (2 variance)), by its series
	for k := int64(1); term.MantExp(nil) > -int(bits+192); k++ {
		ratio.Add(ratio, term.Quo(term, float(-2*variance*k)))
	}
	// k^2 grows by 2 k + 1: a weight is the one before times a ratio, which shrinks as well.
	step, weight, total, sums := float(0).Mul(ratio, ratio), float(1), float(1), []*big.Float{float(0)}
	for total.Cmp(sums[len(sums)-1]) > 0 {
		sums = append(sums, float(0).Set(total))
		weight.Mul(weight, ratio)
		ratio.Mul(ratio, step)
		total.Add(total, float(0).Add(weight, weight))
	}
	for _, sum := range sums[1:] {
		at, _ := sum.SetMantExp(sum.Quo(sum, total), int(bits)).Int(nil)
		below = append(below, at)
	}
	return below
}

// noiseOf gives the noise of a cell for 64 random bits: the lowest is the sign; the others, and 128 more
// behind them, are looked up.
func noiseOf(below []*big.Int, word uint64, seed []byte, cell uint64) int64 {
	more := sha3.SumSHAKE256(slices.Concat(seed, []byte("finer"), number(cell)), 16)
	drawn := new(big.Int).SetUint64(word >> 1)
	drawn.Or(drawn.Lsh(drawn, 128), new(big.Int).SetBytes(more))
	size, isEntry := slices.BinarySearchFunc(below, drawn, (*big.Int).Cmp)
	if isEntry { // which of two numbers it is takes still more bits: once in more than 10^50 draws
		must(0, fmt.Errorf("cell %d cannot be decided", cell))
	}
	return int64(size) * (1 - 2*int64(word&1))
}
