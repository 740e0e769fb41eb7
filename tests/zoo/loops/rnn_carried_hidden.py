"""pytorch/examples word_language_model: batchify(), get_batch() by position, a hidden state carried
and detached.
"""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", "--batch_size", type=int, default=4)
parser.add_argument("--bptt", type=int, default=5)
parser.add_argument("--clip", type=float, default=0.25)
args = parser.parse_args()

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
ntokens = 11
corpus = torch.randint(0, ntokens, (170,), generator=torch.Generator().manual_seed(7))


def batchify(data, bsz):
    nbatch = data.size(0) // bsz
    return data.narrow(0, 0, nbatch * bsz).view(bsz, -1).t().contiguous()


def get_batch(source, i):
    seq_len = min(args.bptt, len(source) - 1 - i)
    return source[i : i + seq_len], source[i + 1 : i + 1 + seq_len].view(-1)


class RNNModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Embedding(ntokens, 6)
        self.rnn = nn.LSTM(6, 6)
        self.decoder = nn.Linear(6, ntokens)

    def forward(self, tokens, hidden):
        output, hidden = self.rnn(self.encoder(tokens), hidden)
        return self.decoder(output).view(-1, ntokens), hidden

    def init_hidden(self, bsz):
        return torch.zeros(1, bsz, 6), torch.zeros(1, bsz, 6)


def repackage_hidden(h):
    return h.detach() if isinstance(h, torch.Tensor) else tuple(repackage_hidden(v) for v in h)


train_data = batchify(corpus, args.batch_size)
model = RNNModel()
criterion = nn.CrossEntropyLoss()
lr = 2.0
for epoch in range(2):
    hidden = model.init_hidden(args.batch_size)
    for i in range(0, train_data.size(0) - 1, args.bptt):
        data, targets = get_batch(train_data, i)
        model.zero_grad()
        hidden = repackage_hidden(hidden)
        output, hidden = model(data, hidden)
        loss = criterion(output, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-lr)
    print(f"| epoch {epoch} | loss {loss.item():5.2f}")
