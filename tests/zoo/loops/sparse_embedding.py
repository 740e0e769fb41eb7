"""word2vec with negative samples: sparse gradients and SparseAdam."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class SkipGram(nn.Module):
    def __init__(self, vocab, dim):
        super().__init__()
        self.u_embeddings = nn.Embedding(vocab, dim, sparse=True)
        self.v_embeddings = nn.Embedding(vocab, dim, sparse=True)

    def forward(self, pos_u, pos_v, neg_v):
        emb_u = self.u_embeddings(pos_u)
        score = F.logsigmoid((emb_u * self.v_embeddings(pos_v)).sum(1))
        negative = torch.bmm(self.v_embeddings(neg_v), emb_u.unsqueeze(2)).squeeze(2)
        return -(score + F.logsigmoid(-negative).sum(1)).mean()


class Word2VecTrainer:
    def __init__(self, batch_size, vocab=25, dim=4):
        g = torch.Generator().manual_seed(57)
        pairs = TensorDataset(
            torch.randint(0, vocab, (53,), generator=g),
            torch.randint(0, vocab, (53,), generator=g),
            torch.randint(0, vocab, (53, 3), generator=g),
        )
        self.dataloader = DataLoader(pairs, batch_size=batch_size, shuffle=True)
        self.skip_gram_model = SkipGram(vocab, dim)
        self.optimizer = torch.optim.SparseAdam(self.skip_gram_model.parameters(), lr=1e-2)

    def train(self, iterations):
        for iteration in range(iterations):
            for batch in self.dataloader:
                self.optimizer.zero_grad()
                loss = self.skip_gram_model(*batch)
                loss.backward()
                self.optimizer.step()
            print(f"Iteration: {iteration + 1} Loss: {loss.item():.5f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    w2v = Word2VecTrainer(parser.parse_args().batch_size)
    w2v.train(2)
    result = vars(w2v)
